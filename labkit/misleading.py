"""`timing_mistakes`: how GPU code is timed wrongly, each way beside the right one, on the GPU at hand.

    python -m labkit.misleading    times GeLU as the source article does, twice, in a new process; prints both as JSON
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import sys
import time
from typing import Callable

import torch

from labkit import figures, machine, results
from labkit.arguments import loaded
from labkit.build import load
from labkit.environment import in_a_new_process
from labkit.mutants import mutant
from labkit.operator import Operator
from labkit.output_errors import WrongResult
from labkit.precision import type_name
from labkit.report import here, keep, show_recorded
from labkit.timing import STARVED, Gpu, lead_in, measure, timed

Call = Callable[[torch.Tensor], torch.Tensor]
CALLS = 100  # as the source article has it
ROUNDS = 30  # of the right way
SIDE = 4096  # of the article's tensor
IN_L2 = 0.5  # of the L2 cache, for a tensor and its result
LARGE = 16384  # of a tensor whose kernel takes much longer than its launch
SMALL = 1024  # elements whose kernel is shorter than its launch
IDLE = 5.0  # seconds after which a GPU has slowed its clocks down
BUSY = 200_000  # clocks for which the GPU has work before a call: about a tenth of a millisecond
AT_WORK = 2_000_000_000  # clocks: about a second, in which its clocks are read
GROUPS = 9
HALF = ("if (i < vectors) {", "if (i < vectors / 2) {")  # in version 4 of GeLU


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A way to time, what it times, and what goes wrong. wrong, right: microseconds a call."""

    name: str
    what: str
    wrong: float
    right: float
    why: str


def timing_mistakes(name: str, gelu: Operator) -> list[dict]:
    """Times GeLU in ways that are common and wrong, and in the right one; shows and keeps the tables.

    name: what the table is called in results/; <name>_spread is what a few repeats can give. gelu: from `labkit.load`.

    A row a mistake: what is timed, what the mistake gives and what the right way gives (microseconds a call), the former
    over the latter, and what went wrong. Of the last one the timed kernel is faulty, and `bench` refuses it. Without a GPU
    the recorded tables are shown and [] returned. Raises RuntimeError where the CPU is too busy to time anything right.
    """
    loaded("timing_mistakes", "gelu", gelu)
    title = "Ways to time GPU code that mislead"
    if machine.backend() != "cuda":
        return show_recorded([name, f"{name}_spread"], title)
    mistakes = [mistake for find in _MISTAKES for mistake in find(gelu)]
    rows = [{"mistake": one.name, "timed": one.what, "gives, µs": _rounded(one.wrong), "right, µs": _rounded(one.right),
             "of the right": figures.ratio(one.wrong / one.right), "why": one.why} for one in mistakes]
    results.note("measured", title, f"{len(rows)} ways")
    keep({name: results.table_of(title, rows), f"{name}_spread": _spread(gelu)}, f"On {here()}")
    return rows


def _rounded(us: float) -> float:
    return round(us, 2 if us < 100 else 1)


# -- the ways -----------------------------------------------------------------------------------------------

def right(call: Call, x: torch.Tensor, warm: bool = False) -> float:
    """Microseconds of a call, as `labkit.bench` takes them: warmed up, behind other work, a cold L2 cache, a median.

    warm: the work before it leaves the cache as it is, and there is one tensor. Raises RuntimeError where the GPU waited for
    Python in most calls: then the figure would be Python's.
    """
    gpu = Gpu()
    if warm:
        gpu.flush_l2 = lambda: torch.cuda._sleep(BUSY)
    samples = measure({"call": call}, [(x,)] if warm else [(x,), (x.clone(),)], gpu, ROUNDS)["call"]
    if samples.starved > STARVED * ROUNDS:
        raise RuntimeError("timing_mistakes: the GPU waited for Python, so that there is no right figure; is the CPU busy?")
    return statistics.median(samples.microseconds)


def by_the_clock(call: Call, x: torch.Tensor, wait: bool, calls: int = CALLS) -> float:
    """Microseconds a call by the CPU's clock around a loop; `wait`: for the GPU, before the clock is read again."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(calls):
        call(x)
    if wait:
        torch.cuda.synchronize()
    took = time.perf_counter() - begun
    torch.cuda.synchronize()
    return 1e6 * took / calls


def each_by_the_clock(call: Call, x: torch.Tensor, calls: int = CALLS) -> list[float]:
    """Microseconds of each call by the CPU's clock, the GPU waited for each time."""
    return [by_the_clock(call, x, wait=True, calls=1) for _ in range(calls)]


def by_events(call: Call, x: torch.Tensor, calls: int = CALLS) -> float:
    """Microseconds a call by two CUDA events around a loop."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call(x)
    stop.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(stop) / calls


# -- the mistakes -------------------------------------------------------------------------------------------

def _dtype() -> torch.dtype:
    """A 16-bit type that torch.compile takes here: without native bfloat16 it would leave the function to eager PyTorch."""
    return torch.bfloat16 if machine.native_bfloat16() else torch.float16


def _values(shape: tuple[int, ...], gelu: Operator) -> torch.Tensor:
    return torch.randn(shape, device=gelu.device, dtype=torch.float32).to(_dtype())


def _square(side: int) -> str:
    return f"{side} × {side} {type_name(_dtype())}"


def _article(gelu: Operator) -> list[Mistake]:
    first, again = in_a_new_process("labkit.misleading")  # where nothing is warm
    x = _values((SIDE, SIDE), gelu)
    cold = right(gelu, x)
    lead_in(Gpu())
    queued = by_events(gelu, x)
    what = _square(SIDE)
    return [Mistake(f"the article's way: the mean of {CALLS}", what, first, cold,
                    "in a new process: no warm-up, one tensor, a mean, launches from Python"),
            Mistake("the same a second time", what, again, cold, "warmed up; the rest is as before"),
            Mistake("the same behind other work", what, queued, cold, "by events: the GPU does not wait for Python at first")]


def _no_wait(gelu: Operator) -> list[Mistake]:
    x = _values((LARGE, LARGE), gelu)
    gelu(x)
    return [Mistake("no synchronisation", _square(LARGE), by_the_clock(gelu, x, wait=False), right(gelu, x),
                    "launches return at once: it times the CPU's part")]


def _compilation(gelu: Operator) -> list[Mistake]:
    x = _values((SIDE, SIDE), gelu)
    torch._dynamo.reset()
    compiled = gelu.rivals.compiled(gelu.rivals.sigmoid_form)
    return [Mistake("the first call counted", f"{_square(SIDE)}, torch.compile", by_the_clock(compiled, x, wait=True),
                    right(compiled, x), f"{CALLS} calls share the compilation")]


def _warm_cache(gelu: Operator) -> list[Mistake]:
    side = int((IN_L2 * machine.gpu()["l2_mib"] * 2**20 / (2 * torch.bfloat16.itemsize)) ** 0.5) // 64 * 64
    x = _values((side, side), gelu)
    return [Mistake("data left in L2", _square(side), right(gelu, x, warm=True), right(gelu, x),
                    "the same tensor again and again comes from the cache; in a model it comes from memory")]


def _zeros(gelu: Operator) -> list[Mistake]:
    side = 2 * SIDE
    values = torch.randn(side, side, device=gelu.device, dtype=torch.float32).to(torch.float16)

    def sustained(x: torch.Tensor) -> float:
        by_events(lambda x: x @ x, x, calls=3 * CALLS)  # until the clocks have settled
        return by_events(lambda x: x @ x, x, calls=3 * CALLS)

    turns = [(sustained(torch.zeros_like(values)), sustained(values)) for _ in range(2)]
    zeros, right = (sum(times) / len(turns) for times in zip(*turns))
    return [Mistake("zeros as input", f"product of two {side} × {side} float16 matrices", zeros, right,
                    "bits that do not flip take little power, so the clocks can stay high; both by events")]


def _mean(gelu: Operator) -> list[Mistake]:
    x = _values((SIDE, SIDE), gelu)
    times = each_by_the_clock(gelu, x)
    return [Mistake("each call waited for, the mean", _square(SIDE), statistics.mean(times), right(gelu, x),
                    f"adds the wait; the median is {statistics.median(times):.1f} µs, "
                    f"the slowest of {CALLS} {max(times):.1f} µs")]


def _clocks(gelu: Operator) -> list[Mistake]:
    graph = _graph(gelu, _values((SIDE, SIDE), gelu))
    right(lambda x: graph.replay(), torch.zeros(1, device=gelu.device))
    warm = _replayed(graph)
    torch.cuda._sleep(AT_WORK)
    fast = machine.clocks()
    torch.cuda.synchronize()
    time.sleep(IDLE)
    idle = _replayed(graph)  # before the clocks are read, which may wake the GPU
    time.sleep(IDLE)
    slow = machine.clocks()
    seen = ", ".join(f"{label} {reading['sm_mhz']:.0f} MHz" for label, reading in (("idle", slow), ("at work", fast))
                     if reading and reading["sm_mhz"])
    what = f"{_square(SIDE)}, {CALLS} launches in a graph, {IDLE:.0f} s after the last work"
    return [Mistake("another clock", what, idle, warm,
                    f"where a GPU that idles slows down, two programs may meet two clocks; here {seen or 'none was read'}")]


def _overhead(gelu: Operator) -> list[Mistake]:
    x = _values((SMALL,), gelu)
    graph = _graph(gelu, x)
    return [Mistake("launches taken for the kernel", f"{SMALL} elements {type_name(_dtype())}", by_events(gelu, x),
                    right(lambda x: graph.replay(), x) / CALLS,
                    f"the GPU waits for Python; right is one of {CALLS} launches in a CUDA graph")]


def _graph(gelu: Operator, x: torch.Tensor) -> torch.cuda.CUDAGraph:
    """CALLS launches."""
    out = torch.empty_like(x)
    gelu.ops.forward_out(x, out, gelu.latest)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            gelu.ops.forward_out(x, out, gelu.latest)
    graph.keeps = x, out  # its launches hold their addresses
    return graph


def _replayed(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds a launch of one replay."""
    return by_events(lambda x: graph.replay(), torch.zeros(()), calls=1) / CALLS


def _allocation(gelu: Operator) -> list[Mistake]:
    def makes_its_input(x: torch.Tensor) -> torch.Tensor:
        return gelu(torch.randn_like(x))

    x = _values((SIDE, SIDE), gelu)
    return [Mistake("the input made inside the loop", _square(SIDE), right(makes_its_input, x), right(gelu, x),
                    "random numbers take longer than GeLU")]


def _wrong_answer(gelu: Operator) -> list[Mistake]:
    half = mutant(gelu.name, 4, *HALF, backend="cuda")
    x = _values((SIDE, SIDE), gelu)
    try:
        timed({"half": lambda x: half(x, version=4)}, lambda: (x,), None, None, lambda x: gelu.reference.gelu(x.double()),
              (1e-2, 1e-3), 2, "half")
        refused = "bench did not either, since what lay in the memory before was right"
    except WrongResult:
        refused = "bench raises WrongResult"
    return [Mistake("a fast wrong answer", f"{_square(SIDE)}, half of it computed", right(lambda x: half(x, version=4), x),
                    right(lambda x: gelu(x, version=4), x), f"nobody looked at the result; {refused}")]


_MISTAKES = (_article, _no_wait, _compilation, _warm_cache, _zeros, _mean, _clocks, _overhead, _allocation, _wrong_answer)


# -- few repeats --------------------------------------------------------------------------------------------

def _spread(gelu: Operator) -> dict:
    """The record: how far off n calls can be, by bench's way and by a loop that waits for each call, among 900."""
    x, gpu = _values((SIDE, SIDE), gelu), Gpu()
    samples = {"bench": measure({"call": gelu}, [(x,), (x.clone(),)], gpu, 900)["call"].microseconds,
               "each call waited for": each_by_the_clock(gelu, x, 900)}
    return results.table_of("What n repeats can give", [{"timed by": way, **row} for way, found in samples.items()
                                                        for row in spreads(found)])


def spreads(samples: list[float], sizes: tuple[int, ...] = (1, 3, 10, 30, 100)) -> list[dict]:
    """For each size, of GROUPS groups of so many samples in a row, spread evenly: how far off a median, and a mean, can be.

    Off is in per cent of the median of all samples. Raises ValueError where there are not enough of them.
    """
    if len(samples) < GROUPS * max(sizes):
        raise ValueError(f"spreads: {len(samples)} samples are not enough for {GROUPS} groups of {max(sizes)}")
    middle, rows = statistics.median(samples), []
    for size in sizes:
        groups = [samples[k * len(samples) // GROUPS:][:size] for k in range(GROUPS)]
        row = {"repeats": size}
        for label, of in (("median", statistics.median), ("mean", statistics.mean)):
            found = [of(group) for group in groups]
            row |= {f"least {label}, µs": round(min(found), 2), f"largest {label}, µs": round(max(found), 2),
                    f"{label} off by at most, %": round(100 * max(abs(one / middle - 1) for one in found), 2)}
        rows.append(row)
    return rows


# -- the child ----------------------------------------------------------------------------------------------

if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        _gelu = load("gelu", launch=False)
        _x = _values((SIDE, SIDE), _gelu)
        _told = [by_the_clock(_gelu, _x, wait=True) for _ in range(2)]
    print(json.dumps(_told))
