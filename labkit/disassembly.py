"""What nvdisasm prints, read: the instructions of each kernel with the source lines that they came from.

nvdisasm puts the source line before an instruction, innermost first where functions were inlined:

    //## File ".../vec.cuh", line 29 inlined at ".../gelu.cu", line 194
    //## File ".../gelu.cu", line 194
    /*0150*/              @!P0 LDG.E.128 R8, desc[UR10][R8.64] ;

The classes of instructions are those that a reader looks for. They go by the names of opcodes from Turing to Blackwell.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Sequence

# class: the instructions in it, by their text without a predicate. The first that fits is an instruction's class.
CLASSES = {
    "16 bytes": r"(LD|ST|LDG|STG|LDS|STS|LDGSTS)\.(\w+\.)*128\b",
    "local memory": r"(LDL|STL)\b",
    "constant": r"HFMA2\S* \w+, -RZ, RZ,",  # nothing is multiplied: a way to put a constant into a register
    "conversion": r"(F2F|F2FP|F2I|F2IP|I2F|I2FP)\b|HADD2\.F32 \w+, -RZ,",  # the last: from half to float
    "fused": r"(FFMA|DFMA|FFMA2|HFMA2)\b",
    "special function": r"MUFU\b",
    "branch": r"(BRA|BRX|BRXU|JMP|JMX|CALL|RET)\b",
    "barrier": r"(BAR|WARPSYNC|MEMBAR|SYNCS)\b",
}

_SECTION = re.compile(r"^\s*\.section\s+\.text\.(\S+?),.*$", re.MULTILINE)
_PLACE = re.compile(r'\s*//## File "(.*?)", line (\d+)')
_LABEL = re.compile(r"(\S+):$")
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]+)\*/\s+(.*?)\s*;")
_TARGET = re.compile(r"\s*`\(([^)]*)\)")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction.

    address: in bytes from the start of its kernel.
    text: with its predicate and operands; the targets of branches are addresses: "@!P0 BRA 0x0340".
    place: (file, line) of the innermost function of the repository that it came from; None in a routine. What comes from
        CUDA's own mathematics, such as tanhf, has no line: it counts to the line of the instruction before it.
    routine: the routine of CUDA's library that it belongs to, such as "__cuda_sm20_div_rn_f64_full"; "" for the kernel.
    """

    address: int
    text: str
    place: tuple[Path, int] | None
    routine: str

    @property
    def opcode(self) -> str:
        """The operation with its modifiers, such as "LDG.E.128"."""
        return without_predicate(self.text).split()[0]


def without_predicate(text: str) -> str:
    """An instruction's text without the condition that it is executed under."""
    return re.sub(r"^@!?\w+ ", "", text)


def class_of(text: str) -> str | None:
    """Which of CLASSES an instruction is in, by its text; None for the others."""
    bare = without_predicate(text)
    return next((name for name, pattern in CLASSES.items() if re.match(pattern, bare)), None)


def parse(printed: str, folders: Sequence[Path]) -> dict[str, list[Instruction]]:
    """The instructions of each kernel, {mangled name: instructions}, from what `nvdisasm -c -gi` prints.

    folders: whose files are the repository's. What only fills a kernel up to a multiple of 128 bytes is left out: a branch
    to itself and NOPs.
    """
    _, *sections = _SECTION.split(printed)
    return {name: _instructions(name, body, folders) for name, body in zip(sections[::2], sections[1::2])}


def _instructions(kernel: str, body: str, folders: Sequence[Path]) -> list[Instruction]:
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []  # labels of the next instruction
    chain: list[tuple[str, int]] = []  # the line of the next instruction, then those that its function was inlined at
    routine, chain_is_whole = "", True
    for line in body.splitlines():
        if place := _PLACE.match(line):
            chain = [*([] if chain_is_whole else chain), (place[1], int(place[2]))]
            chain_is_whole = False
        elif code := _INSTRUCTION.match(line):
            address = int(code[1], 16)
            labels.update((label, address) for label in waiting)
            found.append(Instruction(address, code[2], _innermost(chain, folders), routine))
            waiting, chain_is_whole = [], True
        elif label := _LABEL.match(line):
            waiting.append(label[1])
            if label[1].startswith("$"):
                routine, chain = label[1].rpartition("$")[2], []

    def target(match: re.Match) -> str:
        label = match[1]
        if label == kernel:  # where a routine returns to
            return ""
        return f" 0x{labels[label]:04x}" if label in labels and label[0] != "$" else f" {label.rpartition('$')[2]}"

    found = [dataclasses.replace(one, text=_TARGET.sub(target, one.text)) for one in found]
    while found and found[-1].text == "NOP":
        found.pop()
    if found and found[-1].text == f"BRA 0x{found[-1].address:04x}":
        found.pop()
    return found


def _innermost(chain: list[tuple[str, int]], folders: Sequence[Path]) -> tuple[Path, int] | None:
    for file, line in chain:
        path = _resolved(file)
        if any(path.is_relative_to(folder) for folder in folders):
            return path, line
    return None


@functools.lru_cache(maxsize=256)  # the same few headers, thousands of times
def _resolved(file: str) -> Path:
    return Path(file).resolve()
