"""What can be known of a kernel where the GPU's counters are refused: its time, and what the CPU and the compiler tell.

- its time, by CUDA events, as `bench` takes it;
- registers, threads and shared memory of the launch, by torch.profiler, which needs no counters; and the occupancy that
  these allow, calculated (how much of it is reached needs a counter);
- the sectors of its loads and stores, by `labkit.trace` on the CPU, on an input of fewer rows;
- the bytes that it spills into local memory, by ptxas.

How busy a unit was, what went to the GPU's memory and what warps waited for, only counters tell.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Callable

from labkit import machine, occupancy
from labkit.build import BuildError, load
from labkit.cubin import NoCompiler, bare, compile_cubin
from labkit.gpu_counts import Case, Rival, traced
from labkit.gpu_trace import in_order
from labkit.gpu_trace import traced as profiled
from labkit.operator import python_part
from labkit.timing import timed

ROUNDS = 20
TRACED = 1 << 17  # elements of an input that is traced at most, but for a row that is longer


@dataclasses.dataclass(frozen=True)
class Known:
    """us: the median of a call. registers: a thread's; occupancy: what they allow, in per cent. load, store: sectors a warp's
    access. spills: bytes a thread, in words; each None where it is not known.
    """

    us: float
    registers: int | None
    occupancy: float | None
    load: float | None
    store: float | None
    spills: str | None


def known(case: Case | Rival) -> Known:
    """What is known of a case on this GPU without counters. Of several kernels, that which takes longest counts."""
    call, inputs = _function(case), case.inputs(machine.device())
    kernel = longest(profiled(lambda: call(*inputs)))
    registers, possible = launch_figures(kernel, occupancy.limits()) if kernel else (None, None)
    load_sectors, store_sectors = _sectors(case)
    spills = _spills(case, kernel["name"]) if kernel else None
    return Known(round(median_us(case), 2), registers, possible, load_sectors, store_sectors, spills)


def median_us(case: Case | Rival) -> float:
    """The median of a call's times on this GPU, by CUDA events, as `bench` takes it."""
    inputs = tuple(case.inputs(machine.device()))
    record = timed({"call": _function(case)}, lambda: inputs, None, None, None, None, ROUNDS, case.label)
    return record["rows"][0]["median_us"]


def longest(trace: dict) -> dict | None:
    """Of the kernels in torch.profiler's trace the event of the one that takes longest; None where none ran."""
    ran = [event for event in in_order(trace) if event.get("cat") == "kernel"]
    return max(ran, key=lambda event: event["dur"], default=None)


def launch_figures(kernel: dict, limits: dict) -> tuple[int | None, float | None]:
    """(registers a thread, occupancy that is possible in per cent) of a kernel's event; None for what it does not tell."""
    told = kernel["args"]
    registers, block = told.get("registers per thread"), told.get("block")
    if registers is None or block is None:
        return registers, None
    found = occupancy.blocks_by_limit(limits, math.prod(block), registers, told.get("shared memory", 0))
    return registers, round(100 * found["occupancy"], 1)


def smaller(case: Case) -> Case:
    """The case with so few rows, or elements of a vector, that tracing it is quick; at least a warp's 32 rows."""
    *rows, last = case.shape
    if not rows:
        return dataclasses.replace(case, shape=(min(last, TRACED),))
    wanted = max(32, TRACED // max(last, 1))
    return dataclasses.replace(case, shape=(*(1 for _ in rows[1:]), min(math.prod(rows), wanted), last))


def _function(case: Case | Rival) -> Callable[..., object]:
    if isinstance(case, Rival):
        return getattr(python_part(case.operator, "rivals"), case.function)
    mode = getattr(load(case.operator).ops, case.mode)
    return lambda *inputs: mode(*inputs, case.version)


def _sectors(case: Case | Rival) -> tuple[float | None, float | None]:
    if isinstance(case, Rival):
        return None, None
    try:
        found = traced(smaller(case))
    except BuildError:  # no compiler here that watches accesses
        return None, None
    totals = [found.total(does) for does in ("reads", "writes")]
    return tuple(round(total.sectors / total.requests, 2) if total.requests else None for total in totals)


def _spills(case: Case | Rival, kernel: str) -> str | None:
    if isinstance(case, Rival):
        return None
    try:
        compiled = compile_cubin(case.operator, case.version, machine.arch()).kernels
    except NoCompiler:
        return None
    found = [each for each in compiled if each.name == bare(kernel)]
    spilled = {each.spill_stores + each.spill_loads for each in found}  # a name may stand for several kernels
    return f"{spilled.pop()} B a thread spilled" if len(spilled) == 1 else None
