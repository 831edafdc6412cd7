"""`shared_accesses`: the order in which machine code of a faulty kernel loads from shared memory and stores; needs no GPU."""

from __future__ import annotations

import contextlib
import io
import itertools
import re

from labkit import machine, results
from labkit.arguments import named
from labkit.cubin import NoCompiler, compile_cubin
from labkit.machine_code import ARCH, HOW
from labkit.mutants import Fault, mutant
from labkit.operator import kernels_of
from labkit.report import keep, show_recorded


def shared_accesses(name: str, faults: dict[str, Fault], kernel: str, title: str) -> list[dict]:
    """Compiles faulty kernels with nvcc and lists their accesses to shared memory after the last barrier.

    name: what the table is called in results/. faults: {column: Fault}. kernel: words that the kernel's name holds and no
    other's, such as "float>". title: the table's head.

    A column a fault, a row an access, in the order of the machine code: "LDS [R5+0x40]" loads, "STS [R5]" stores. In one warp
    that runs in step they happen in this order. Compiled for the GPU here, or for sm_90. Returns the rows. Without nvcc or
    nvdisasm the recorded table is shown, and [] returned.
    """
    named("shared_accesses", "faults", faults, "Fault", lambda fault: isinstance(fault, Fault))
    try:
        found = {what: _after_the_last_barrier(fault, kernel) for what, fault in faults.items()}
    except NoCompiler as error:
        return show_recorded([name], title, str(error))
    columns, (made_by, *_) = {what: texts for what, (texts, _) in found.items()}, (by for _, by in found.values())
    rows = [{"access": number, **dict(zip(columns, texts, strict=True))}
            for number, texts in enumerate(itertools.zip_longest(*columns.values()), 1)]
    results.note("built", title, ", ".join(f"{what}: {len(texts)} accesses" for what, texts in columns.items()))
    keep({name: results.table_of(f"{title}, by {made_by}", rows)}, HOW)
    return rows


def _after_the_last_barrier(fault: Fault, kernel: str) -> tuple[list[str], str]:
    """The accesses, and what compiled them."""
    with contextlib.redirect_stdout(io.StringIO()):  # what it builds
        broken = mutant(fault.operator, fault.version, fault.old, fault.new)
    with kernels_of(broken.source.parents[1]):
        made = compile_cubin(fault.operator, fault.version, machine.arch() or ARCH)
    texts: list[str] = []
    for instruction in made.code(made.kernel(kernel)):
        if instruction.opcode.startswith("BAR"):
            texts.clear()
        elif access := re.search(r"\b(LDS|STS)\b.*?(\[[^]]*\])", instruction.text):
            texts.append(" ".join(access.groups()))
    return texts, made.made_by
