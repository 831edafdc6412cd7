"""Times training steps of the case study on as many processes as torchrun starts, and looks where they wait for each other.

    torchrun --standalone --nproc-per-node=gpu labs/scaling.py --ways ddp fsdp --output scaling.json

Weak: each process has as many sequences as one process alone would have. Strong: they share those of one. Blocks of steps
of both are timed in turn. Then some steps of each run under torch.profiler, in every process.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Callable, Iterable

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # labkit, where it is not installed

import labkit  # noqa: E402
from gelus import gelus  # noqa: E402
from labkit.gpu_trace import in_order, traced  # noqa: E402
from processes import WAYS, Processes, joined  # noqa: E402
from text_batches import Windows, text_tokens  # noqa: E402
from training import Settings, Trainer, case_study, tiny  # noqa: E402

WARM_UP, PROFILED = 5, 3  # steps
BLOCK, SKIPPED = 10, 2  # timed steps that follow one another, and those before them, which the host may be ahead of
Span = tuple[float, float]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ways", nargs="+", choices=WAYS, required=True)
    parser.add_argument("--sequences", type=int, help="of a process alone; a multiple of the number of processes")
    parser.add_argument("--steps", type=int, default=30, help="timed ones of each kind")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    with joined(options.device) as processes:
        settings = (tiny if options.device == "cpu" else case_study)(processes.device)
        settings = dataclasses.replace(settings, sequences=options.sequences or settings.sequences)
        found = [run for way in options.ways for run in measured(way, settings, processes, options.steps)]
        total = summed(found[0]["weights"], processes, options.steps)
        if processes.rank == 0:
            library = ".".join(map(str, torch.cuda.nccl.version())) if options.device == "cuda" else None
            options.output.write_text(json.dumps({"processes": processes.count, "nccl": library, "runs": found, "sum": total}))


def measured(way: str, settings: Settings, processes: Processes, steps: int) -> list[dict]:
    """A dict for each of weak and strong (one process alone: the two are one), the same in every process.

    "weights": how many the model has. "ms": of each step in process 0. "bytes": the most memory that PyTorch had allocated on a
    GPU. "profiled": per process and step, see `communication`; [] on a CPU. "spans": those of process 0's last step.
    """
    on_gpu = processes.device.type == "cuda"
    activation = gelus(labkit.load("gelu", backend="cuda" if on_gpu else "host"))["fused"]
    trainer = Trainer(settings, processes, activation, way)
    text = text_tokens()
    calls, bytes_of, counts = {}, {}, {"weak": settings.sequences * processes.count, "strong": settings.sequences}
    if processes.count == 1:
        del counts["strong"]
    for kind, sequences in counts.items():
        windows = Windows(text, sequences, settings.context, settings.seed, processes.rank, processes.count)
        tokens, targets = (part.to(processes.device) for part in windows[0])
        calls[kind] = lambda tokens=tokens, targets=targets: trainer.step(settings.warm_up, tokens, targets)
        bytes_of[kind] = _peak(calls[kind], processes.device)
    ms = _timed(calls, steps, processes.device)
    weights, runs = sum(weight.numel() for weight in trainer.model.parameters()), []
    for kind, call in calls.items():
        profiled = [communication(traced(lambda: _together(call))) for _ in range(PROFILED if on_gpu else 0)]
        everywhere = _from_all([{key: value for key, value in each.items() if key != "spans"} for each in profiled], processes)
        runs.append({"way": way, "kind": kind, "sequences": counts[kind], "tokens": counts[kind] * settings.context,
                     "weights": weights, "ms": ms[kind], "bytes": max(_from_all(bytes_of[kind], processes)),
                     "profiled": sum(everywhere, []), "spans": profiled[-1]["spans"] if profiled else {}})
    return runs


def summed(weights: int, processes: Processes, times: int) -> dict:
    """The limit of a step's communication: {"bytes": of all gradients in float32, "ms": of each all-reduce of them}.

    They are added up in one piece, with nothing beside it.
    """
    gradients = torch.zeros(weights, device=processes.device)
    return {"bytes": gradients.nbytes, **_timed({"ms": lambda: dist.all_reduce(gradients)}, times, processes.device)}


def _together(call: Callable) -> None:
    """The call, begun by all processes at the same time: or one would count as communication that another came late."""
    dist.all_reduce(torch.zeros(1))  # in the CPU's memory, so that it is none of the GPU's kernels
    call()


def _from_all(value, processes: Processes) -> list:
    everywhere = [None] * processes.count
    dist.all_gather_object(everywhere, value)
    return everywhere


def _peak(call: Callable, device: torch.device) -> int:
    for _ in range(WARM_UP):  # the optimizer allocates its moments in the first one
        call()
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def _timed(calls: dict[str, Callable], steps: int, device: torch.device) -> dict[str, list[float]]:
    """The ms of at least `steps` steps of each kind, in blocks. In a block one follows the other without a pause, as in
    training: so a step for which the host is too slow takes the host's time, as it would there.
    """
    ms: dict[str, list[float]] = {kind: [] for kind in calls}
    for _ in range(-(-steps // BLOCK)):
        for kind, call in calls.items():
            marks = []
            for _ in range(SKIPPED + BLOCK):
                call()
                marks.append(_mark(device))
            if device.type == "cuda":
                torch.cuda.synchronize()
            ms[kind] += [_between(*pair) for pair in zip(marks[SKIPPED - 1:], marks[SKIPPED:])]
    return ms


def _mark(device: torch.device) -> torch.cuda.Event | float:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(start: torch.cuda.Event | float, end: torch.cuda.Event | float) -> float:
    return 1e3 * (end - start) if isinstance(start, float) else start.elapsed_time(end)


def communication(trace: dict) -> dict:
    """What a step's trace says of NCCL's kernels: in ms "step", "communicating", "exposed", the part of it in which no other
    kernel ran, and "idle", in which none ran at all. "spans": {"compute" or a collective's name: [(start, end)]}, in ms from
    the first kernel's start.
    """
    kernels = [event for event in in_order(trace) if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    begin = kernels[0]["ts"]
    lanes: dict[str, list[Span]] = {"compute": []}
    for event in kernels:
        name = event["name"].split("_")[1] if event["name"].startswith("ncclDevKernel_") else "compute"
        start = (event["ts"] - begin) / 1e3
        lanes.setdefault(name, []).append((start, start + event["dur"] / 1e3))
    lanes = {name: _union(spans) for name, spans in lanes.items()}
    sent = _union(span for name, spans in lanes.items() if name != "compute" for span in spans)
    both = _union([*sent, *lanes["compute"]])
    return {"step": both[-1][1], "communicating": _length(sent), "exposed": _length(both) - _length(lanes["compute"]),
            "idle": both[-1][1] - _length(both), "spans": lanes}


def _union(spans: Iterable[Span]) -> list[Span]:
    """The times in any of the spans, in order, without overlaps."""
    joined_up: list[Span] = []
    for start, end in sorted(spans):
        if joined_up and start <= joined_up[-1][1]:
            joined_up[-1] = joined_up[-1][0], max(joined_up[-1][1], end)
        else:
            joined_up.append((start, end))
    return joined_up


def _length(spans: list[Span]) -> float:
    return sum(end - start for start, end in spans)


if __name__ == "__main__":
    main()
