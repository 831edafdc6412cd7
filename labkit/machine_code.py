"""`sass` and `sass_counts`: the machine code of a kernel, beside its source and counted. It needs nvcc and no GPU."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Callable, Iterable, Sequence

from labkit import disassembly, machine, results, sass_figure
from labkit.arguments import named
from labkit.cubin import Cubin, Kernel, NoCompiler, compile_cubin
from labkit.disassembly import Instruction
from labkit.report import keep, show_recorded

ARCH = "sm_90"  # where there is no GPU whose architecture could be taken
HOW = "Compiled, not run"  # the caption of what is made here

# Columns of `sass_counts`: accesses by their bytes, "16, 2 × 2"; then those that hold a number.
_ACCESSES = {"global loads": ("LDG", "LDGSTS", "LD"), "global stores": ("STG", "ST"), "shared loads": ("LDS",),
             "shared stores": ("STS",)}
_ARITHMETIC = {"fused (FFMA)": ("FFMA", "FFMA2"), "FMUL, FADD": ("FMUL", "FADD", "FMUL2", "FADD2"),
               "64-bit arithmetic": ("DFMA", "DMUL", "DADD"), "16-bit arithmetic": ("HFMA2", "HMUL2", "HADD2")}
_CLASSES = {"barriers": "barrier", "local memory": "local memory"}
_ALWAYS = ("variant", "instructions", "registers", "global loads, bytes", "global stores, bytes", "special functions",
           "fused (FFMA)", "FMUL, FADD")


@dataclass(frozen=True)
class Code:
    """A kernel to be compiled, for `sass_counts`: the first arguments of `sass`."""

    name: str
    version: int | None
    kernel: str
    flags: Sequence[str] = ()


def sass(name: str, version: int | None, kernel: str, flags: Sequence[str] = (), arch: str | None = None) -> list[Instruction]:
    """Shows one kernel's machine code beside the source lines that it came from, and keeps it as a record.

    name: a folder of kernels/. version: of its versions; None compiles all. kernel: words, set apart by blanks, that the
    kernel's name holds and no other's: "v4:: Forward< bfloat16", "v4:: float>". flags: for nvcc, such as "-fmad=false". arch:
    such as "sm_80"; by default that of the GPU here, else ARCH.

    Source lines come in the order of their first instruction; an instruction's address tells where it stands. Of functions
    that were inlined it is the innermost line in the repository. What comes from CUDA's own mathematics, such as tanhf, has
    no line: it stands with the line that came before it.

    The record is called what was asked for: "sass_gelu_v4_v4_forward_bfloat16". Returns the instructions. Without nvcc or
    nvdisasm the recorded listing is shown and [] returned. Raises what `compile_cubin` does, and ValueError, with the names
    that there are, where the words fit no kernel or several.
    """
    if not isinstance(kernel, str):
        raise TypeError(f"sass: kernel is {kernel!r}; it has to be words of its name, such as 'v4:: Forward< bfloat16'")
    code = Code(name, version, kernel, flags)
    asked = ["sass", name, *([f"v{version}"] if version else []), kernel, *flags, *([str(arch)] if arch else [])]
    record = re.sub(r"\W+", "_", " ".join(asked)).strip("_").lower()
    try:
        made, chosen, instructions = _compiled(code, arch)
    except NoCompiler as error:
        return show_recorded([record], f"Machine code of {name}", str(error))
    title = f"{chosen.name}: {_size(chosen, instructions)}, by {' '.join([made.made_by, *flags])}"
    results.note("built", record, f"{len(instructions)} instructions, by {made.made_by}")
    keep({record: sass_figure.record(title, instructions)}, HOW)
    return instructions


def sass_counts(name: str, kernels: dict[str, Code], title: str, arch: str | None = None) -> list[dict]:
    """Counts the instructions of kernels by what they do, in their machine code: a loop's count once.

    name: what the table is called in results/. kernels: {label: Code}. title: the table's head. arch: as for `sass`.

    Returns the rows: variant; instructions; registers (of a thread); global loads and stores, by their bytes of a thread;
    special functions, by what follows MUFU; fused multiply-adds, and other products and sums, of float32. Then of these what
    any of the kernels has: stack (bytes of a thread), shared loads and stores, arithmetic in 64 and in 16 bits, barriers,
    loads and stores of local memory. Without nvcc or nvdisasm the recorded table is shown and [] returned. Raises as `sass`.
    """
    named("sass_counts", "kernels", kernels, "labkit.Code", lambda code: isinstance(code, Code))
    rows = []
    try:
        for label, code in kernels.items():
            made, kernel, instructions = _compiled(code, arch)
            rows.append({"variant": label, "instructions": len(instructions), "registers": kernel.registers,
                         "stack": kernel.stack, **counts(instructions)})
    except NoCompiler as error:
        return show_recorded([name], title, str(error))
    rows = with_columns(rows, lambda column, cells: column in _ALWAYS or set(cells) - {0, "–"})
    results.note("built", name, f"the machine code of {len(rows)} kernels counted, by {made.made_by}")
    keep({name: results.table_of(f"{title}, by {made.made_by}", rows)}, HOW)
    return rows


def _compiled(code: Code, arch: str | None) -> tuple[Cubin, Kernel, list[Instruction]]:
    cubin = compile_cubin(code.name, code.version, arch or machine.arch() or ARCH, code.flags)
    kernel = cubin.kernel(code.kernel)
    return cubin, kernel, cubin.code(kernel)


def _size(kernel: Kernel, instructions: list[Instruction]) -> str:
    local = [f"{count} bytes of {what}" for what, count in (("stack", kernel.stack), ("spill stores", kernel.spill_stores),
                                                            ("spill loads", kernel.spill_loads)) if count]
    return ", ".join([f"{len(instructions)} instructions", f"{kernel.registers} registers", *local])


def counts(instructions: list[Instruction]) -> dict[str, int | str]:
    """{column of `sass_counts`: how many of the instructions, or which of them}."""
    classes = [disassembly.class_of(one.text) for one in instructions]
    opcodes = [one.opcode for one in instructions]
    bases = [one.split(".")[0] for one in opcodes]
    # What only moves or converts a value is none of the arithmetic that its opcode names.
    arithmetic = Counter(base for base, kind in zip(bases, classes) if kind not in ("constant", "conversion"))
    widths = {column: sorted(map(_bytes, (one for one, base in zip(opcodes, bases) if base in of)), reverse=True)
              for column, of in _ACCESSES.items()}
    special = sorted(one.partition(".")[2] for one, base in zip(opcodes, bases) if base == "MUFU")
    return {**{f"{column}, bytes": _listed(of) for column, of in widths.items()}, "special functions": _listed(special),
            **{column: sum(arithmetic[opcode] for opcode in of) for column, of in _ARITHMETIC.items()},
            **{column: classes.count(kind) for column, kind in _CLASSES.items()}}


def _bytes(opcode: str) -> int:
    """What an access moves for a thread: LDG.E.128 is one of 128 bits, and 32 bits are not named."""
    named = [part.lstrip("US") for part in opcode.split(".")[1:]]
    return next((int(part) for part in named if part in ("8", "16", "64", "128", "256")), 32) // 8


def _listed(items: Iterable[int | str]) -> str:
    return ", ".join(f"{count} × {item}" if count > 1 else str(item) for item, count in Counter(items).items()) or "–"


def with_columns(rows: list[dict], wanted: Callable[[str, list], bool]) -> list[dict]:
    """The rows with those columns for which `wanted(column, its cells)` is true."""
    kept = [column for column in rows[0] if wanted(column, [row[column] for row in rows])]
    return [{column: row[column] for column in kept} for row in rows]
