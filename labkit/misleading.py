"""`timing_mistakes`: how GPU code is timed wrongly, each way beside the right one, on the GPU at hand."""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import Callable

import torch

from labkit import figures, machine, results
from labkit.mutants import mutant
from labkit.operator import Operator
from labkit.report import here, keep, show_recorded
from labkit.timing import Gpu, lead_in, measure

Call = Callable[[torch.Tensor], torch.Tensor]
CALLS = 100  # as the source article has it
ROUNDS = 30  # of the right way
SIDE = 4096  # of the article's tensor
IN_L2 = 2048  # of a tensor that lies in the L2 cache of most GPUs, with its result
SMALL = 1024  # elements whose kernel is shorter than its launch
IDLE = 5.0  # seconds after which a GPU has slowed its clocks down
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

    A row a mistake: what is timed, what the mistake gives and what `labkit.bench`'s way gives (microseconds a call), the
    former over the latter, and what went wrong. Of the last one the timed kernel is faulty, and `bench` refuses it. Without
    a GPU the recorded tables are shown and [] returned.
    """
    title = "Ways to time GPU code that mislead"
    if machine.backend() != "cuda":
        return show_recorded([name, f"{name}_spread"], title)
    mistakes = [mistake for find in _MISTAKES for mistake in find(gelu)]
    rows = [{"mistake": one.name, "timed": one.what, "gives, µs": _rounded(one.wrong), "right, µs": _rounded(one.right),
             "of the right": figures.number(one.wrong / one.right) + "×", "why": one.why} for one in mistakes]
    results.note("measured", title, f"{len(rows)} ways")
    keep({name: results.table_of(title, rows), f"{name}_spread": _spread(gelu)}, f"On {here()}")
    return rows


def _rounded(us: float) -> float:
    return round(us, 2 if us < 100 else 1)


# -- the ways -----------------------------------------------------------------------------------------------

def right(call: Call, x: torch.Tensor, flush: bool = True) -> float:
    """Microseconds of a call, as `labkit.bench` takes them: warmed up, cold L2, a median. flush=False: from a warm L2."""
    gpu = Gpu()
    if not flush:
        gpu.flush_l2 = lambda: None
    samples = measure({"call": call}, [(x,), (x.clone(),)] if flush else [(x,)], gpu, ROUNDS)
    return statistics.median(samples["call"].microseconds)


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

def _values(shape: tuple[int, ...], gelu: Operator) -> torch.Tensor:
    return torch.randn(shape, device=gelu.device, dtype=torch.float32).to(torch.bfloat16)


def _square(side: int) -> str:
    return f"{side} × {side} bfloat16"


def _no_wait(gelu: Operator) -> list[Mistake]:
    x = _values((SIDE, SIDE), gelu)
    gelu(x)
    return [Mistake("no synchronisation", _square(SIDE), by_the_clock(gelu, x, wait=False), right(gelu, x),
                    "launches return at once: it times the CPU's part")]


def _compilation(gelu: Operator) -> list[Mistake]:
    x = _values((SIDE, SIDE), gelu)
    torch._dynamo.reset()
    compiled = gelu.rivals.compiled(gelu.rivals.sigmoid_form)
    return [Mistake("the first call counted", f"{_square(SIDE)}, torch.compile", by_the_clock(compiled, x, wait=True),
                    right(compiled, x), f"{CALLS} calls share the compilation")]


def _warm_cache(gelu: Operator) -> list[Mistake]:
    x = _values((IN_L2, IN_L2), gelu)
    right(gelu, x)
    return [Mistake("data left in L2", _square(IN_L2), right(gelu, x, flush=False), right(gelu, x),
                    "the same tensor again and again comes from the cache; in a model it comes from memory")]


def _zeros(gelu: Operator) -> list[Mistake]:
    side = 2 * SIDE
    zeros, values = (torch.zeros(side, side, device=gelu.device, dtype=torch.float16),
                     torch.randn(side, side, device=gelu.device, dtype=torch.float32).to(torch.float16))
    return [Mistake("zeros as input", f"product of two {side} × {side} float16 matrices", right(lambda x: x @ x, zeros),
                    right(lambda x: x @ x, values), "bits that do not flip take little power, and the clocks stay high")]


def _mean(gelu: Operator) -> list[Mistake]:
    x = _values((SIDE, SIDE), gelu)
    times = each_by_the_clock(gelu, x)
    return [Mistake("the mean", f"{_square(SIDE)}, each call waited for", statistics.mean(times), statistics.median(times),
                    f"the slowest of {CALLS} took {max(times) / statistics.median(times):.1f} times the median")]


def _clocks(gelu: Operator) -> list[Mistake]:
    x = _values((SIDE, SIDE), gelu)
    warm = right(gelu, x)
    torch.cuda.synchronize()
    time.sleep(IDLE)
    return [Mistake("another clock", f"{_square(SIDE)}, {IDLE:.0f} s after the last work", by_events(gelu, x, calls=10), warm,
                    "a GPU that has idled starts slowly: two programs, one after the other, meet two clocks")]


def _overhead(gelu: Operator) -> list[Mistake]:
    x, out = _values((SMALL,), gelu), _values((SMALL,), gelu)

    def launch(x: torch.Tensor) -> torch.Tensor:
        gelu.ops.forward_out(x, out, gelu.latest)
        return out

    right(launch, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            launch(x)
    return [Mistake("launches taken for the kernel", f"{SMALL} elements bfloat16", by_events(launch, x),
                    right(lambda x: graph.replay(), x) / CALLS,
                    "the GPU waits for Python; right is one of 100 launches in a CUDA graph")]


def _allocation(gelu: Operator) -> list[Mistake]:
    def makes_its_input(x: torch.Tensor) -> torch.Tensor:
        return gelu(torch.randn_like(x))

    x = _values((SIDE, SIDE), gelu)
    return [Mistake("the input made inside the loop", _square(SIDE), right(makes_its_input, x), right(gelu, x),
                    "random numbers take longer than GeLU")]


def _article(gelu: Operator) -> list[Mistake]:
    x = _values((SIDE, SIDE), gelu)
    torch.cuda.synchronize()
    time.sleep(IDLE)
    return [Mistake(f"the article's way: the mean of {CALLS}", _square(SIDE), by_the_clock(gelu, x, wait=True), right(gelu, x),
                    "no warm-up, one tensor, a mean")]


def _wrong_answer(gelu: Operator) -> list[Mistake]:
    half = mutant(gelu.name, 4, *HALF, backend="cuda")
    x = _values((SIDE, SIDE), gelu)
    return [Mistake("a fast wrong answer", f"{_square(SIDE)}, half of it computed", right(lambda x: half(x, version=4), x),
                    right(lambda x: gelu(x, version=4), x), "nobody looked at the result; bench raises WrongResult")]


_MISTAKES = (_article, _no_wait, _compilation, _warm_cache, _zeros, _mean, _clocks, _overhead, _allocation, _wrong_answer)


# -- few repeats --------------------------------------------------------------------------------------------

def _spread(gelu: Operator) -> dict:
    """The record: how far apart the means and medians of 3, 10, 30 and 100 calls can lie, among 900 calls."""
    x = _values((SIDE, SIDE), gelu)
    gpu = Gpu()
    samples = measure({"call": gelu}, [(x,), (x.clone(),)], gpu, 900)["call"].microseconds
    lead_in(gpu)
    return results.table_of("What n repeats can give", spreads(samples))


def spreads(samples: list[float], sizes: tuple[int, ...] = (1, 3, 10, 30, 100)) -> list[dict]:
    """For each size: the least and the largest median, and mean, of the groups of so many samples that follow one another."""
    rows = []
    for size in sizes:
        groups = [samples[k:k + size] for k in range(0, len(samples) - size + 1, size)]
        row = {"repeats": size, "groups": len(groups)}
        for label, of in (("median", statistics.median), ("mean", statistics.mean)):
            found = [of(group) for group in groups]
            row |= {f"least {label}, µs": round(min(found), 2), f"largest {label}, µs": round(max(found), 2)}
        rows.append(row)
    return rows
