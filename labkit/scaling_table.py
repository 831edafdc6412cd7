"""`scale`: how much faster several GPUs train than one, and how much of a step they wait for each other."""

from __future__ import annotations

import itertools
import json
import os
import re
import statistics
import tempfile
from pathlib import Path

import torch

from labkit import machine, results
from labkit.report import NO_GPU, here, keep, show_recorded
from labkit.torchrun import RunFailed, started

STARTS = 3  # of each number of processes: what differs between two starts, a single one cannot show
MOST_SPANS = 512  # of a lane


def scale(name: str, program: Path, sequences: int, title: str, steps: int = 30) -> list[dict]:
    """Times training steps on 1, 2, 4, ... of this machine's GPUs, by DDP and by FSDP2; shows and keeps the tables.

    name: what the table is called in results/; <name>_waits says what the profiler saw of NCCL, <name>_sum how fast the
    gradients alone are added up, <name>_ddp and <name>_fsdp show a step as timelines. program: takes --ways, --sequences,
    --steps and --output, as labs/scaling.py does. sequences: of one GPU alone, a multiple of the number of GPUs. steps: timed
    ones of each kind and start.

    Each number of GPUs is started STARTS times, in turns. Weak scaling: each GPU has `sequences` of its own. Strong: all share
    `sequences`. Returns the rows: how shared, GPUs, scaling, sequences in all, the median of a step in ms with its 10th and
    90th percentile, the medians of the single starts, tokens a second, the part of GPUs times one GPU's tokens a second in per
    cent, and the most memory of a GPU. None where memory ran out. Where there is less than two GPUs, the recorded tables are
    shown and [] is returned.
    """
    names = [name, f"{name}_waits", f"{name}_sum", f"{name}_ddp", f"{name}_fsdp"]
    if machine.backend() != "cuda" or torch.cuda.device_count() < 2:
        return show_recorded(names, title, NO_GPU if machine.backend() != "cuda" else "this machine has one GPU")
    most = min(torch.cuda.device_count(), sequences)  # strong scaling gives each a sequence at least
    counts = [2**k for k in range(most.bit_length())]
    reports: dict[int, list[dict] | None] = {count: [] for count in counts}
    for count in counts * STARTS:
        if reports[count] is not None:
            report = _started(program, count, sequences, steps)
            reports[count] = None if report is None else [*reports[count], report]
    rows = scaling_rows(reports)
    nccl = next((report["nccl"] for found in reports.values() for report in found or []), "did not run")
    how = f"NCCL {nccl}, linked by {link()}{variables()}"
    results.note("measured", title, f"1 to {counts[-1]} GPUs, {STARTS} starts each, {steps} steps")
    last = next((found[-1] for found in reversed(reports.values()) if found), None)
    timelines = {f"{name}_{way}": timeline for way in ("ddp", "fsdp") if (timeline := _timeline(way, last))}
    waits, sums = waiting_rows(reports), sum_rows(reports)
    keep({name: results.table_of(f"{title}; {how}", rows),
          **({f"{name}_waits": results.table_of(f"{title}: what the profiler saw", waits)} if waits else {}),
          **({f"{name}_sum": results.table_of("The gradients' all-reduce, with nothing beside it", sums)} if sums else {}),
          **timelines}, f"On {here()}; {how}")
    return rows


def _started(program: Path, count: int, sequences: int, steps: int) -> dict | None:
    """What one start of the program found; None where a GPU's memory did not suffice."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "scaling.json"
        arguments = ["--ways", *(["plain"] if count == 1 else ["ddp", "fsdp"]), "--sequences", str(sequences),
                     "--steps", str(steps), "--output", str(output)]
        try:
            with started(program, count, arguments, Path(folder)) as run:
                run.finish()
        except RunFailed:
            if "OutOfMemoryError" in run.errors.read_text(encoding="utf-8", errors="replace"):  # of any process
                return None
            raise
        return json.loads(output.read_text(encoding="utf-8"))


def scaling_rows(reports: dict[int, list[dict] | None]) -> list[dict]:
    """The rows of `scale`. reports: {processes: what the program wrote at each start, or None where memory ran out}."""
    rows, alone = [], None
    for count, found in reports.items():
        for way, kind in [("plain", "weak")] if count == 1 else itertools.product(("ddp", "fsdp"), ("weak", "strong")):
            row = {"shared by": "one alone" if count == 1 else way, "GPUs": count, "scaling": "–" if count == 1 else kind}
            columns = ("sequences", "ms a step", "10–90%, ms", "starts, ms", "tokens/s", "of GPUs × one, %", "memory, GiB")
            if found is None:
                rows.append({**row, **dict.fromkeys(columns)})
                continue
            runs = [run for report in found for run in report["runs"] if (run["way"], run["kind"]) == (way, kind)]
            ms = [each for run in runs for each in run["ms"]]
            median, tenths = statistics.median(ms), statistics.quantiles(ms, n=10, method="inclusive")
            rate = 1e3 * runs[0]["tokens"] / median
            alone = rate if count == 1 else alone
            starts = sorted(statistics.median(run["ms"]) for run in runs)
            values = (runs[0]["sequences"], round(median, 2), f"{tenths[0]:.1f}–{tenths[-1]:.1f}",
                      f"{starts[0]:.1f}–{starts[-1]:.1f}", round(rate), alone and round(100 * rate / count / alone, 1),
                      round(max(run["bytes"] for run in runs) / 2**30, 1))
            rows.append({**row, **dict(zip(columns, values, strict=True))})
    return rows


def waiting_rows(reports: dict[int, list[dict] | None]) -> list[dict]:
    """What the profiler saw, a row for each way to share: medians over all profiled steps of all processes and starts."""
    rows = []
    for count, found in reports.items():
        for way, kind in itertools.product(("ddp", "fsdp"), ("weak", "strong")):
            steps = [step for report in found or [] for run in report["runs"] if (run["way"], run["kind"]) == (way, kind)
                     for step in run["profiled"]]
            if steps:
                step, sent, exposed, idle = (statistics.median(each[key] for each in steps)
                                             for key in ("step", "communicating", "exposed", "idle"))
                hidden = [100 * (1 - each["exposed"] / each["communicating"]) for each in steps if each["communicating"]]
                rows.append({"shared by": f"{way}, {count} GPUs, {kind}", "steps": len(steps),
                             "a step, profiled, ms": round(step, 2), "NCCL runs, ms": round(sent, 2),
                             "alone, ms": round(exposed, 2),
                             "behind other kernels, %": round(statistics.median(hidden), 1),
                             "no kernel runs, ms": round(idle, 2)})
    return rows


def sum_rows(reports: dict[int, list[dict] | None]) -> list[dict]:
    """How long the gradients' all-reduce takes alone, a row for each number of GPUs from 2: medians over all starts.

    By rings and trees each of N GPUs sends 2 (N - 1) / N times the bytes. Where NVLink's switch adds up (NVLS) it sends less,
    and the rate is then that of rings as fast.
    """
    rows = []
    for count, found in reports.items():
        if count > 1 and found:
            size, ms = found[0]["sum"]["bytes"], [each for report in found for each in report["sum"]["ms"]]
            median, tenths = statistics.median(ms), statistics.quantiles(ms, n=10, method="inclusive")
            rows.append({"GPUs": count, "gradients, GB": round(size / 1e9, 2), "ms": round(median, 2),
                         "10–90%, ms": f"{tenths[0]:.2f}–{tenths[-1]:.2f}",
                         "sent by each, GB/s": round(2 * (count - 1) / count * size / median / 1e6)})
    return rows


def _timeline(way: str, report: dict | None) -> dict | None:
    """One weakly scaled step of process 0, from a report of several processes, as a record."""
    runs = [run for run in (report or {"runs": []})["runs"] if (run["way"], run["kind"]) == (way, "weak") and run["spans"]]
    if not runs:
        return None
    lanes = [{"name": name,
              "spans": [{"start": round(start, 3), "end": round(end, 3)} for start, end in closed(spans, MOST_SPANS)]}
             for name, spans in runs[-1]["spans"].items()]
    return {"kind": "timeline", "title": f"A step by {way} on {report['processes']} GPUs: kernels of process 0", "unit": "ms",
            "lanes": lanes}


def closed(spans: list[list[float]], most: int) -> list[list[float]]:
    """The spans, the shortest gaps between them closed until there are at most `most`."""
    gaps = sorted(after[0] - before[1] for before, after in zip(spans, spans[1:]))
    width = gaps[len(spans) - most - 1] if len(spans) > most else -1.0
    found = [list(spans[0])]
    for start, end in spans[1:]:
        if start - found[-1][1] <= width:
            found[-1][1] = end
        else:
            found.append([start, end])
    return found


def link() -> str:
    """What connects the first two GPUs, in nvidia-smi's words: "NV18", 18 links of NVLink, or "PHB", the PCIe bus."""
    row = re.search(r"^GPU0\s+X\s+(\w+)", machine.output("nvidia-smi", "topo", "-m") or "", re.MULTILINE)
    return row[1] if row else "what nvidia-smi does not say"


def variables() -> str:
    """The variables of this process's environment that NCCL reads, as words to append; "" where there is none."""
    found = sorted(f"{name}={value}" for name, value in os.environ.items()
                   if name.startswith("NCCL_") and name != "NCCL_VERSION")  # which container images set, and NCCL passes over
    return "".join(f", {words}" for words in found)
