"""`overlap`: work on chunks that come from the CPU's memory, with the copies before the work or beside it.

The variants are the reader's own functions, written in PyTorch's streams and events. Here is what times them, checks what
they computed, and draws when each copy and each computation ran.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from typing import Callable, ContextManager, Iterator

import torch

from labkit import machine, results
from labkit.report import keep, show_recorded

CHUNKS = 24
CHUNK_BYTES = 64 << 20
DRAWN = 6  # chunks of a timeline
ROUNDS = 7
RATIOS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of computation to copying
Span = Callable[[str, int], ContextManager[None]]
Variant = Callable[[list, list, Callable, Span], None]


@dataclasses.dataclass(frozen=True)
class Job:
    """Chunks in page-locked memory of the CPU, two buffers on the GPU, and what is done with each chunk."""

    chunks: list[torch.Tensor]
    buffers: list[torch.Tensor]
    operator: Callable[[torch.Tensor], torch.Tensor]

    def run(self, variant: Variant, times: int, span: Span, chunks: list[torch.Tensor] | None = None) -> torch.Tensor:
        """Runs a variant over the chunks: of each computation, in order, the sum of its result (float64, on the GPU).

        times: how often the operator is called on a chunk, to make the computation as long as wanted.
        """
        chunks = self.chunks if chunks is None else chunks
        sums = torch.full((len(chunks),), torch.nan, dtype=torch.float64, device=self.buffers[0].device)
        done = 0

        def work(buffer: torch.Tensor) -> None:
            nonlocal done
            if done == len(chunks):
                raise ValueError(f"overlap: the variant computes more often than there are chunks, {done}")
            for _ in range(times):
                y = self.operator(buffer)
            sums[done] = y.sum(dtype=torch.float64)
            done += 1

        variant(chunks, self.buffers, work, span)
        return sums


def overlap(name: str, variants: dict[str, Variant], operator: Callable[[torch.Tensor], torch.Tensor],
            title: str) -> list[dict]:
    """Times the variants where copying and computing take equally long, and where one takes longer.

    name: what the table is called in results/; <name>_timeline shows when each copy and computation of the first chunks ran,
    <name>_ratios is the curve of time over the ratio of computing to copying. title: the tables' head.
    variants: {label: function of (chunks, buffers, work, span)}. chunks: tensors in page-locked memory of the CPU. buffers:
    two tensors on the GPU, of a chunk's size. The function copies each chunk, in order, into a buffer, calls work(buffer)
    and surrounds both: `with span("copy", i):` and `with span("compute", i):`.
    operator: what work(buffer) calls, as often as makes it take as long as wanted.

    The results of every variant are compared with those of copying and computing with a full stop after each step. Returns
    the table's rows. Raises AssertionError where a variant computed with a chunk that was not there yet, or was gone. Without
    a GPU no variant is called: it shows the recorded tables and returns [].
    """
    if machine.backend() != "cuda":
        return show_recorded([name, f"{name}_timeline", f"{name}_ratios"], title)
    job = _job(operator)
    alone = {"copying alone": lambda chunks, buffers, work, span: _copy_all(chunks, buffers),
             "computing alone": lambda chunks, buffers, work, span: [work(buffers[0]) for _ in chunks]}
    copy, = _rounds(job, {"copying alone": alone["copying alone"]}, 1).values()
    once, = _rounds(job, {"computing alone": alone["computing alone"]}, 1).values()
    twice, = _rounds(job, {"computing alone": alone["computing alone"]}, 9).values()
    fixed = once[0] - (twice[0] - once[0]) / 8  # the sums, which every computation ends with
    balanced = max(1, round((copy[0] - fixed) / ((twice[0] - once[0]) / 8)))

    for label, variant in variants.items():
        _check(job, label, variant, balanced)
    ordinary = [chunk.clone() for chunk in job.chunks]  # not page-locked
    pageable = {f"{label}, memory not page-locked": (variant, ordinary) for label, variant in variants.items()}
    timed = _rounds(job, {**alone, **variants, **pageable}, balanced)
    bound = max(timed["copying alone"][0], timed["computing alone"][0])
    rows = [{"what": label, "ms": round(ms, 3), "10–90%, ms": f"{low:.2f}–{high:.2f}",
             "of the larger, %": round(100 * bound / ms, 1)}
            for label, (ms, low, high) in timed.items()]
    size = f"{CHUNKS} chunks of {CHUNK_BYTES >> 20} MiB"
    keep({name: results.table_of(f"{title}: {size}, {balanced} calls a chunk", rows),
          f"{name}_timeline": _timeline(job, variants, balanced, f"{title}: the first {DRAWN} chunks"),
          f"{name}_ratios": _ratios(job, {**alone, **variants}, balanced, f"{title}: {size}")})
    for label in variants:
        results.note("measured", f"{title}, {label}",
                     f"{timed[label][0]:.1f} ms, the larger of copying and computing {bound:.1f} ms")
    return rows


def _job(operator: Callable) -> Job:
    device, elements = machine.device(), CHUNK_BYTES // 2
    chunks = [torch.randn(elements, device=device).bfloat16().cpu().pin_memory() for _ in range(CHUNKS)]
    return Job(chunks, [torch.empty(elements, dtype=torch.bfloat16, device=device) for _ in range(2)], operator)


def _copy_all(chunks: list, buffers: list) -> None:
    for i, chunk in enumerate(chunks):
        buffers[i % 2].copy_(chunk, non_blocking=True)


def _no_span(what: str, chunk: int) -> ContextManager[None]:
    return contextlib.nullcontext()


def _rounds(job: Job, variants: dict, times: int) -> dict[str, tuple[float, float, float]]:
    """{label: (median, 10th, 90th percentile) in ms}, from a call to the end of the GPU's work; variants take turns."""
    found: dict[str, list[float]] = {label: [] for label in variants}
    for turn in range(1 + ROUNDS):
        for label, variant in variants.items():
            variant, chunks = variant if isinstance(variant, tuple) else (variant, job.chunks)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            job.run(variant, times, _no_span, chunks)
            torch.cuda.synchronize()
            if turn:  # the first is not timed
                found[label].append(1e3 * (time.perf_counter() - begin))
    tenths = {label: statistics.quantiles(ms, n=10, method="inclusive") for label, ms in found.items()}
    return {label: (statistics.median(ms), tenths[label][0], tenths[label][-1]) for label, ms in found.items()}


def _one_by_one(chunks: list, buffers: list, work: Callable, span: Span) -> None:
    for chunk in chunks:
        buffers[0].copy_(chunk)
        torch.cuda.synchronize()
        work(buffers[0])
        torch.cuda.synchronize()


def _check(job: Job, label: str, variant: Variant, times: int) -> None:
    for calls in (1, times, 4 * times):  # copying takes longer, as long, and shorter
        for buffer in job.buffers:
            buffer.fill_(torch.nan)
        expected = job.run(_one_by_one, 1, _no_span)
        got = job.run(variant, calls, _no_span)
        torch.cuda.synchronize()
        if wrong := [i for i, (a, b) in enumerate(zip(got.tolist(), expected.tolist())) if a != b]:
            raise AssertionError(f"overlap: {label!r} computed with other contents of the buffer than chunk {wrong[0]} (and "
                                 f"{len(wrong) - 1} more of {len(job.chunks)}); does the copy wait until the buffer is free, "
                                 "and the computation until it is full?")
    results.note("check", f"{label}, {len(job.chunks)} chunks", "each computed from its own contents, at three ratios")


def _timeline(job: Job, variants: dict[str, Variant], times: int, title: str) -> dict:
    lanes = []
    for label, variant in variants.items():
        events: list[tuple[str, int, torch.cuda.Event, torch.cuda.Event]] = []

        @contextlib.contextmanager
        def span(what: str, chunk: int) -> Iterator[None]:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            yield
            stop.record()
            events.append((what, chunk, start, stop))

        for _ in range(2):  # the first makes streams and memory ready
            events.clear()
            torch.cuda.synchronize()
            origin = torch.cuda.Event(enable_timing=True)
            origin.record()
            job.run(variant, times, span, job.chunks[:DRAWN])
            torch.cuda.synchronize()
        lanes += lanes_of(label, [(what, chunk, origin.elapsed_time(start), origin.elapsed_time(stop))
                                  for what, chunk, start, stop in events])
    return {"kind": "timeline", "title": title, "unit": "ms", "lanes": lanes}


def lanes_of(group: str, spans: list[tuple[str, int, float, float]]) -> list[dict]:
    """The lanes of one variant in a record of kind "timeline", one a kind of work. spans: (what, chunk, start, end) in ms."""
    kinds = list(dict.fromkeys(what for what, *_ in spans))
    return [{"name": kind, "group": group,
             "spans": [{"label": str(chunk), "start": round(start, 4), "end": round(end, 4), "color": kinds.index(kind)}
                       for what, chunk, start, end in spans if what == kind]} for kind in kinds]


def _ratios(job: Job, variants: dict[str, Variant], balanced: int, title: str) -> dict:
    times = sorted({max(1, round(ratio * balanced)) for ratio in RATIOS})
    found = [{label: ms for label, (ms, _, _) in _rounds(job, variants, calls).items()} for calls in times]
    ratio = [ms["computing alone"] / ms["copying alone"] for ms in found]
    series = {label: [round(ms[label], 3) for ms in found] for label in variants if not label.endswith("alone")}
    larger = [round(max(ms["computing alone"], ms["copying alone"]), 3) for ms in found]
    every = [value for values in (*series.values(), larger) for value in values]
    return {"kind": "curve", "title": title,
            "x": {"label": "computing over copying", "scale": "log", "values": ratio, "ticks": _ticks(ratio, (1, 2, 4), 8)},
            "y": {"label": "ms", "scale": "log", "ticks": _ticks(every, (1, 2, 5), 10)},
            "series": {**series, "the larger of the two": larger}}


def _ticks(values: list[float], steps: tuple[int, ...], base: int) -> list[float]:
    """The numbers step * base**k within the range of the values."""
    every = [step * base**k for k in range(-3, 7) for step in steps]
    return [tick for tick in every if min(values) <= tick <= max(values)]
