"""`levels` and `in_flight`: the memory system of the GPU at hand, measured by the kernels of kernels/probes.cu.

Latency is measured by one thread that follows a chain: each load gives the address of the next, so that nothing overlaps.
Bandwidth is measured by all threads together; each has several loads of 16 bytes on their way.

A launch is timed as `bench` does it, behind other work, so that the GPU never waits for Python, and reads so much that
starting it costs nothing beside that. Every probe gives back the sum of what it has read, and a wrong one is no measurement.
"""

from __future__ import annotations

import functools
import math
import statistics
from typing import Any, Callable

import torch

from labkit import REPOSITORY, figures, machine, results, toolchain
from labkit.report import keep, show_recorded
from labkit.sources import PROBES
from labkit.timing import Gpu, lead_in

LAUNCH_SECONDS = 20e-3  # how long a launch lasts at least whose bandwidth is measured
LINE = 128  # bytes between the steps of a chain: a line of the L1 cache
STEPS = 1 << 14  # of a chain, measured
REPEATS = 5
THREADS_AN_SM = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)


def levels(name: str) -> list[dict]:
    """Measures latency and bandwidth of registers, shared memory, the L1 and L2 caches and the GPU's memory.

    name: what the table is called in results/; <name>_latency is the curve of latency over the size of what is accessed.

    Returns a row a level: its size, latency in clocks and in ns, bandwidth in GB/s summed over all SMs, and bytes a clock
    and SM. Without a GPU it shows the recorded tables and returns [].
    """
    if machine.backend() != "cuda":
        return show_recorded([name, f"{name}_latency"], "The levels of the memory")
    gpu = torch.cuda.get_device_properties(machine.device())
    clock = _clock_ghz()
    curve = _latency_curve(gpu)
    l2, large = gpu.L2_cache_size // 2, _beyond_caches(gpu)
    measured = [
        ("registers", f"{_size(4 * gpu.regs_per_multiprocessor)} an SM", _chase_register(), _registers_gbps(gpu)),
        ("shared memory", f"{_size(gpu.shared_memory_per_multiprocessor)} an SM", _chase_shared(), _shared_gbps(gpu)),
        ("L1 cache", f"{_size(_first_level(curve))} an SM, as seen", _chase_global(32 << 10), _l1_gbps(gpu)),
        ("L2 cache", _size(gpu.L2_cache_size), _chase_global(l2 // 2), _read_gbps(_words(l2), gpu, 2048, 2)),
        ("memory", _size(gpu.total_memory), _chase_global(large, cold=True), _read_gbps(_words(large), gpu, 2048, 4)),
    ]
    rows = [{"level": level, "size": size, "latency, clocks": round(clocks, 1), "latency, ns": round(clocks / clock, 1),
             "GB/s": round(gbps), "bytes a clock and SM": round(gbps / clock / gpu.multi_processor_count, 1)}
            for level, size, clocks, gbps in measured]
    results.note("measured", "levels of the memory", f"{len(rows)} levels, {len(curve['x']['values'])} sizes")
    keep({name: results.table_of("The levels of the memory", rows), f"{name}_latency": curve})
    return rows


def in_flight(name: str) -> list[dict]:
    """Measures how the memory's bandwidth grows with the bytes that are on their way at a time.

    name: what the curve is called in results/; <name>_summary is a table of the bandwidth at each end and of Little's law.

    A grid of one or two blocks an SM reads memory that no cache holds. Each thread issues 1, 2 or 4 loads of 16 bytes,
    waits for them, and goes on, so the bytes in flight are known. Little's law says that they are the latency times the
    bandwidth. Returns the summary's rows. Without a GPU it shows the recorded tables and returns [].
    """
    if machine.backend() != "cuda":
        return show_recorded([name, f"{name}_summary"], "Bytes in flight")
    gpu = torch.cuda.get_device_properties(machine.device())
    x = _words(_beyond_caches(gpu))
    threads = [t for t in THREADS_AN_SM if t <= gpu.max_threads_per_multi_processor]
    points = {loads: {16 * loads * t: _read_gbps(x, gpu, t, loads) for t in threads} for loads in (1, 2, 4)}
    latency_ns = _chase_global(_beyond_caches(gpu), cold=True) / _clock_ghz()
    curve, rows = little(points, latency_ns, gpu.multi_processor_count)
    results.note("measured", "bytes in flight", f"{sum(map(len, points.values()))} settings")
    keep({name: curve, f"{name}_summary": results.table_of("Bytes in flight", rows)})
    return rows


def little(points: dict[int, dict[int, float]], latency_ns: float, sms: int) -> tuple[dict, list[dict]]:
    """The curve and the summary of `in_flight`.

    points: {loads a thread: {bytes in flight an SM: GB/s}}. latency_ns: of one load, alone. sms: how many SMs read.
    """
    sizes = sorted({size for found in points.values() for size in found})
    peak = max(gbps for found in points.values() for gbps in found.values())
    law = [min(size * sms / latency_ns, peak) for size in sizes]
    series = {f"{loads} load{'s' if loads > 1 else ''} a thread": [found.get(size) for size in sizes]
              for loads, found in points.items()}
    needed = peak * latency_ns / sms
    ticks = [1 << k for k in range(9, 20, 2) if sizes[0] <= 1 << k <= sizes[-1]]
    curve = {"kind": "curve", "title": "Bandwidth of the memory over the bytes in flight",
             "x": {"label": "bytes in flight an SM", "scale": "log", "values": sizes, "ticks": ticks,
                   "tick_labels": [_size(tick) for tick in ticks]},
             "y": {"label": "GB/s"}, "series": {**series, "Little's law": law},
             "vertical": [{"label": "latency × bandwidth", "x": needed}]}
    best = [max(found.get(size, 0.0) for found in points.values()) for size in sizes]
    rows = [{"what": "latency of one load alone, ns", "value": round(latency_ns, 1)},
            {"what": "highest bandwidth, GB/s", "value": round(peak)},
            {"what": "latency times bandwidth, KiB an SM", "value": round(needed / 1024, 1)},
            {"what": "nine tenths of the bandwidth, as measured, KiB an SM",
             "value": round(reached(sizes, best, 0.9 * peak) / 1024, 1)}]
    return curve, rows


def reached(sizes: list[int], gbps: list[float], level: float) -> float:
    """The size at which the bandwidth first reaches `level`, between two that were measured on a straight line of log(size)."""
    after = next(k for k, value in enumerate(gbps) if value >= level)
    if after == 0:
        return sizes[0]
    part = (level - gbps[after - 1]) / (gbps[after] - gbps[after - 1])
    return sizes[after - 1] * (sizes[after] / sizes[after - 1]) ** part


def chain(lines: int, address: int, seed: int = 0) -> torch.Tensor:
    """A cycle through `lines` lines of LINE bytes in random order: int64 words, one a line holding the address of the next.

    address: of the tensor's first byte, where the kernel reads it. Returns lines * LINE / 8 words on the CPU; those between
    are 0.
    """
    order = torch.randperm(lines, generator=torch.Generator().manual_seed(seed))
    words = torch.zeros(lines * LINE // 8, dtype=torch.int64)
    words[order * (LINE // 8)] = address + order.roll(-1) * LINE
    return words


# -- the probes ---------------------------------------------------------------------------------------------

@functools.cache
def _kernel(name: str) -> Any:
    toolchain.point_torch_to_cuda()
    return torch.cuda._compile_kernel((REPOSITORY / PROBES).read_text(encoding="utf-8"), name)


def _launch(name: str, blocks: int, threads: int, *arguments: Any) -> None:
    _kernel(name)(grid=(blocks, 1, 1), block=(threads, 1, 1), args=list(arguments))


def _walk(name: str, *arguments: Any) -> tuple[float, int]:
    """One launch of a chase over STEPS: (clocks a step, where it ended)."""
    result = torch.zeros(2, dtype=torch.int64, device="cuda")
    _launch(name, 1, 1, *arguments, STEPS, result)
    clocks, end = result.tolist()
    return clocks / STEPS, end


def _chase_register() -> float:
    return statistics.median(_walk("chase_register", 1)[0] for _ in range(REPEATS))


def _chase_shared() -> float:
    return statistics.median(_walk("chase_shared")[0] for _ in range(REPEATS))


def _chase_global(footprint: int, cold: bool = False) -> float:
    """Clocks a load along a chain through `footprint` bytes, of which the caches hold what they can; nothing where `cold`."""
    lines = footprint // LINE
    memory = torch.empty(lines * LINE // 8, dtype=torch.int64, device="cuda")
    memory.copy_(chain(lines, memory.data_ptr()))
    memory.sum()  # into the L2 cache
    if cold:
        torch.zeros(2 * torch.cuda.get_device_properties(memory.device).L2_cache_size, dtype=torch.uint8, device="cuda")
    # The L1 cache holds nothing when a kernel begins. A chain that it may hold is walked twice.
    unmeasured = 2 * lines if footprint <= 1 << 20 else 0
    found, at = [], 0
    for _ in range(REPEATS):  # each goes on where the last one ended, and so meets other lines
        clocks, end = _walk("chase_global", memory[at:], unmeasured)
        found.append(clocks)
        at += end
    return statistics.median(found)


def _clock_ghz() -> float:
    """Clocks a nanosecond of an SM at work, from a chain of additions timed from inside and from outside."""
    result = torch.zeros(2, dtype=torch.int64, device="cuda")
    seconds = launch_seconds(lambda: _launch("chase_register", 1, 1, 1, 1 << 22, result))
    return result[0].item() / seconds / 1e9


def launch_seconds(launch: Callable[[], None]) -> float:
    """The median over REPEATS launches, after one that is not timed."""
    gpu, pairs = Gpu(), []
    for _ in range(1 + REPEATS):
        lead_in(gpu)
        start = gpu.mark()
        launch()
        pairs.append((start, gpu.mark()))
    gpu.synchronize()
    return statistics.median(gpu.microseconds(*pair) for pair in pairs[1:]) / 1e6


def _gbps(what: str, size: int, launch: Callable[[int, torch.Tensor], None], sum_of_pass: int, threads: int) -> float:
    """GB/s of a probe that reads `size` bytes a pass. launch: given the passes and a place for the sum of each thread."""
    sums = torch.empty(threads, dtype=torch.int32, device="cuda")
    passes = 2
    once = launch_seconds(lambda: launch(passes, sums)) / passes
    passes = max(passes, math.ceil(LAUNCH_SECONDS / once))
    seconds = launch_seconds(lambda: launch(passes, sums))
    _verify(what, sums, passes * sum_of_pass)
    return passes * size / seconds / 1e9


def _verify(what: str, sums: torch.Tensor, expected: int) -> None:
    """The words that all threads have read add up, modulo 2^32."""
    if (int(sums.long().sum()) - expected) % (1 << 32):
        raise RuntimeError(f"{what}: the probe did not read what it should; its time means nothing. Please report this, with "
                           "the GPU and the versions that labkit.start shows")


def _words(size: int) -> torch.Tensor:
    return torch.randint(0, 1 << 16, (size // 4,), dtype=torch.int32, device="cuda")


def _beyond_caches(gpu: Any) -> int:
    """Bytes of an array that the caches hold little of, and that takes a while to read."""
    return max(8 * gpu.L2_cache_size, 1 << 30)


def _registers_gbps(gpu: Any) -> float:
    blocks, threads, ones = gpu.multi_processor_count, 1024, torch.ones(1024, dtype=torch.int32, device="cuda")
    operands = blocks * threads * 8 * 3 * 4  # eight multiply-adds a thread name three operands of four bytes each
    return _gbps("registers", operands, lambda passes, sums: _launch("read_registers", blocks, threads, ones, passes, sums),
                 blocks * threads * 8, blocks * threads)


def _shared_gbps(gpu: Any) -> float:
    blocks, threads, size = gpu.multi_processor_count, 1024, 32 << 10
    x = _words(size)
    return _gbps("shared memory", blocks * size, lambda passes, sums: _launch("read_shared", blocks, threads, x, passes, sums),
                 blocks * int(x.long().sum()), blocks * threads)


def _l1_gbps(gpu: Any) -> float:
    blocks, threads, size = gpu.multi_processor_count, 1024, 32 << 10
    x = _words(blocks * size)
    return _gbps("L1", blocks * size, lambda passes, sums: _launch("read_l1", blocks, threads, x, size // 16, passes, sums),
                 int(x.long().sum()), blocks * threads)


def _read_gbps(x: torch.Tensor, gpu: Any, threads: int, loads: int) -> float:
    """Reads of x past the L1 cache, by `threads` threads an SM (at most what it holds) with `loads` loads each on their way."""
    threads = min(threads, gpu.max_threads_per_multi_processor)
    blocks_an_sm = -(-threads // 1024)
    blocks, block = gpu.multi_processor_count * blocks_an_sm, threads // blocks_an_sm
    turn = loads * blocks * block
    vectors = x.numel() // 4 // turn * turn
    return _gbps("memory", 16 * vectors, lambda passes, sums: _launch(f"read_{loads}", blocks, block, x, vectors, passes, sums),
                 int(x[:4 * vectors].long().sum()), blocks * block)


# -- the curve of latencies, and what is shown ----------------------------------------------------------------

def _latency_curve(gpu: Any) -> dict:
    sizes = []
    size = 4 << 10
    while size <= 8 * gpu.L2_cache_size:
        sizes += [size, size * 3 // 2]
        size *= 2
    ticks = sizes[::6]
    return {"kind": "curve", "title": "Latency of a load over the size of what is accessed",
            "x": {"label": "bytes accessed in random order", "scale": "log", "values": sizes, "ticks": ticks,
                  "tick_labels": [_size(tick) for tick in ticks]},
            "y": {"label": "clocks"}, "series": {"one load after another": [round(_chase_global(size), 1) for size in sizes]},
            "vertical": [{"label": f"L2, {_size(gpu.L2_cache_size)}", "x": gpu.L2_cache_size}]}


def _first_level(curve: dict) -> int:
    """The largest size whose loads still take about as long as those of the smallest: what the L1 cache holds."""
    (clocks,) = curve["series"].values()
    return max(size for size, taken in zip(curve["x"]["values"], clocks) if taken < 1.3 * clocks[0])


def _size(size: int) -> str:
    """Bytes as "64 KiB"; less than a tenth is dropped."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{figures.number(round(size, 1))} {unit}"
        size /= 1024
    raise AssertionError
