"""`what_limits`: what each kernel waits for and why, by Nsight Compute, read in the notebook.

`saved_report` shows the same of a report that is kept, with no GPU.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Sequence

from labkit import machine, results
from labkit.build import short
from labkit.ceilings import copy_gbps
from labkit.gpu_counts import Case, Rival, program, validate
from labkit.ncu_reports import PACKED, Launch, NotRead, pack, read
from labkit.profiling import NotCounted, export
from labkit.report import here, keep, note_recorded, show_recorded, show_table
from labkit.without_counters import known

SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "LaunchStats", "WarpStateStats")
BUSY = 60  # per cent of its peak from which a unit is said to limit: NVIDIA's own bound
BALANCED = 10  # points by which two of them differ at the most where both limit
NEAR = 90  # per cent of a copy's rate from which nothing is to be gained
OF_DRAM = 0.8  # of the busiest part of the memory system, from which that part is the GPU's memory

TIME = "gpu__time_duration.sum"
BYTES = "dram__bytes.sum"  # the parts, read and written, have other names on newer GPUs
_SHARE = ".avg.pct_of_peak_sustained_elapsed"
_MEMORY, _SM, _DRAM = (f"{unit}{_SHARE}" for unit in
                       ("gpu__compute_memory_throughput", "sm__throughput", "gpu__dram_throughput"))
_ISSUED = "smsp__inst_executed.sum"  # by a warp, for its 32 threads at a time
_HITS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum"
_ACHIEVED, _POSSIBLE = "sm__warps_active.avg.pct_of_peak_sustained_active", "sm__maximum_warps_per_active_cycle_pct"
_REGISTERS = "launch__registers_per_thread"
_SECTORS, _REQUESTS = ("l1tex__t_{}_pipe_lsu_mem_global_op_{{}}.sum".format(what) for what in ("sectors", "requests"))
_LOCAL = [f"l1tex__t_requests_pipe_lsu_mem_local_op_{op}.sum" for op in ("ld", "st")]
# Beside what the sections hold, as the occupancy that is possible and the registers, which are no counters.
METRICS = (TIME, BYTES, _MEMORY, _SM, _DRAM, _ISSUED, _HITS, _ACHIEVED, *_LOCAL,
           *(metric.format(op) for metric in (_SECTORS, _REQUESTS) for op in ("ld", "st")))
# Some reports have the parts of a reason as well.
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(?!\w+(?:_not_issued|_pipe_mio)_per)(\w+?)_per_issue_active\.ratio")
# The parts of an SM that execute instructions, beside those that issue them; a newer GPU may have others.
_PIPE = re.compile(rf"sm__(?:inst_executed_)?pipe_(\w+?)(?:_cycles_active)?{re.escape(_SHARE)}")
_PIPES = {"xu": "special functions (xu)", "alu": "integers, bits (alu)", "fma": "float32 (fma)",
          "fmaheavy": "float32, products (fmaheavy)", "fp64": "float64 (fp64)", "fp16": "16-bit floats (fp16)",
          "lsu": "loads, stores (lsu)", "adu": "addresses, barriers (adu)"}
# What a warp that does not issue waits for, in plain words beside Nsight Compute's own; others keep its words.
_WAITS = {"long_scoreboard": "data", "lg_throttle": "room for loads and stores",
          "short_scoreboard": "shared memory or a special function", "mio_throttle": "room for requests of shared memory",
          "barrier": "a barrier", "wait": "a fixed time", "math_pipe_throttle": "a pipe", "not_selected": "its turn",
          "drain": "its stores", "no_instruction": "its next instruction", "membar": "a fence",
          "branch_resolving": "a branch", "dispatch_stall": "dispatch", "imc_miss": "a constant",
          "tex_throttle": "room for texture requests", "gmma": "the tensor cores"}


def what_limits(name: str, cases: Sequence[Case | Rival], title: str, counters: bool = True) -> list[dict]:
    """Launches each case once under Nsight Compute, and tables what limits it and why; keeps the tables and the report.

    name: what the table of limits is called in results/; <name>_why has occupancy, accesses and what warps wait for. The
    report is packed into results/reports/, where `saved_report(name)` reads it, in place of that of an earlier run. cases:
    labkit.Case, or labkit.Rival for a function of kernels/<operator>/rivals.py; their labels must differ. Rivals come last,
    and their report is not kept: it holds the machine code of a whole library of PyTorch's, tens of MB. title: the tables'
    head. counters: False to see what is left where they are refused.

    A row a launch. What it limits: its time; how busy the way to the GPU's memory was, caches included (Nsight Compute's
    memory throughput), the memory alone, and the SMs with instructions, in per cent of their peaks; the MB that went to and
    from the GPU's memory, and those that had to: all inputs and outputs of the case once (fewer went where the L2, which
    begins empty, holds outputs when the launch ends); and the limit. That is "memory", "L1 or L2" or "instructions" where
    one of them was busy for 60% or more, else "latency": nothing was; "memory and instructions" where they are within ten
    points. Why: instructions that a thread executes for an element of an input of the case's shape; 32-byte sectors a
    warp's load and store, and how many of those loaded L1 had; accesses to local memory, which spilled registers are; warp
    slots filled, and those that could have been; registers a thread; what a warp waited for most, and in how much of its
    time; the busiest of the pipes that execute instructions.

    Where counters are refused, or Nsight Compute is missing, the call says so and what to do about it, and shows the same
    tables with what is known without: see `labkit.without_counters`. Without a GPU the recorded tables are shown and [] is
    returned. Raises ValueError for cases that no operator has.
    """
    validate("what_limits", cases, (Case, Rival))
    if machine.backend() != "cuda":
        return show_recorded([name, f"{name}_why"], title, asked=[case.label for case in cases])
    if not counters:
        return _without(name, cases, title, "Nsight Compute is not asked")
    try:
        launches = _counted(name, [case for case in cases if isinstance(case, Case)], keeps=True)
        launches += _counted(name, [case for case in cases if isinstance(case, Rival)], keeps=False)
    except (NotCounted, NotRead) as error:
        return _without(name, cases, title, str(error))
    results.note("measured", title, f"{len(launches)} launches by Nsight Compute")
    limits, why = tables(launches)
    keep({name: results.table_of(title, limits), f"{name}_why": results.table_of(f"{title}: why", why)})
    return limits


def _counted(name: str, cases: Sequence[Case | Rival], keeps: bool) -> list[Launch]:
    if not cases:
        return []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / f"{name}.ncu-rep"
        export(report, SECTIONS, METRICS, program(cases))
        if keeps:
            size = pack(report, _kept(name))
            print(f"The report, {size / 1e3:,.0f} kB, is kept: {short(_kept(name))}")
        launches = read(report)
    if missing := [case.label for case in cases if case not in {launch.case for launch in launches}]:
        raise NotCounted(f"its report holds {len(launches)} launches, and none of {missing[0]}")
    return launches


def saved_report(name: str | Path, title: str | None = None) -> list[dict]:
    """Shows a report of Nsight Compute as `what_limits` does, with no GPU and no Nsight Compute; returns the rows of limits.

    name: what `what_limits` was given in the lab that was started, or the path of a file that ends in .ncu-rep or
    .ncu-rep.xz, whoever made it. title: the tables' head; by default the recorded table's, or the file's name.

    Where no report is kept under that name, or no module is here that reads it, this is said and [] returned. Raises
    FileNotFoundError for a path to nothing, and ValueError for a name where no lab was started.
    """
    path, known = name if isinstance(name, Path) else Path(name), None
    if not path.name.endswith((".ncu-rep", PACKED)):
        if results.session().lab is None:
            raise ValueError(f"saved_report: {str(name)!r} is no file of the kind .ncu-rep, and no lab was started whose "
                             'report it could name; call labkit.start("NN_topic") first')
        found = sorted(reports().glob(f"*/{results.session().lab}_{name}{PACKED}"),
                       key=lambda kept: (kept.parent.name != results.BOOK_GPU, kept))
        if not found:
            lab = f"{results.session().lab}_"
            there = sorted({kept.name.removeprefix(lab).removesuffix(PACKED) for kept in reports().glob(f"*/{lab}*{PACKED}")})
            print(f"No report {str(name)!r} of {results.session().lab} is kept; it has {', '.join(there) or 'none'}.")
            return []
        path = found[0]
        known = results.recorded(results.session().lab, str(name), path.parent.name)
    try:
        launches = read(path)
    except NotRead as error:
        print(f"Not shown: {error}")
        return []
    limits, why = tables(launches)
    title = title or (known.table["title"] if known else path.name)
    caption = f"{known.caption() if known else f'From {path.name}'}; Nsight Compute's report, not measured on this machine"
    show_table(results.table_of(title, limits), caption)
    show_table(results.table_of(f"{title}: why", why), caption)
    if known:
        note_recorded(str(name), known)
    return limits


def reports() -> Path:
    """Where packed reports are kept: a folder a GPU."""
    return results.folder() / "reports"


def _kept(name: str) -> Path:
    return reports() / machine.gpu()["slug"] / f"{results.session().lab or 'no_lab'}_{name}{PACKED}"


def tables(launches: Sequence[Launch]) -> tuple[list[dict], list[dict]]:
    """The rows of limits and of reasons."""
    labels, cases = _labels(launches), [launch.case for launch in launches]
    firsts = [case and case not in cases[:k] for k, case in enumerate(cases)]
    return ([{"launch": label, **_limit(launch, first)} for label, launch, first in zip(labels, launches, firsts)],
            [{"launch": label, **_why(launch)} for label, launch in zip(labels, launches)])


def limit_of(memory: float | None, dram: float | None, instructions: float | None) -> str | None:
    """What limits a launch, by how busy these are in per cent of their peaks; None where that is not known."""
    if memory is None or instructions is None:
        return None
    if max(memory, instructions) < BUSY:
        return "latency"
    ways = "memory" if dram is None or dram >= OF_DRAM * memory else "L1 or L2"
    if abs(memory - instructions) < BALANCED:
        return f"{ways} and instructions"
    return "instructions" if instructions > memory else ways


def _limit(launch: Launch, first: bool) -> dict:
    """first: of the case's launches, which together move what must be moved."""
    memory, dram, instructions = (launch.get(metric) for metric in (_MEMORY, _DRAM, _SM))
    return {"µs": launch.get(TIME, digits=2, scale=1e6), "memory, %": memory, "DRAM, %": dram, "instructions, %": instructions,
            "DRAM, MB": launch.get(BYTES, scale=1e-6), "must move, MB": _must_move(launch.case) if first else None,
            "limit": limit_of(memory, dram, instructions)}


def _must_move(case: Case | Rival) -> float:
    return round(case.must_move / 1e6, 1)


def _why(launch: Launch) -> dict:
    registers = launch.get(_REGISTERS, digits=0)
    sectors = [launch.get(_SECTORS.format(op), _REQUESTS.format(op), digits=2) for op in ("ld", "st")]
    local = [launch.get(metric, digits=0) for metric in _LOCAL]
    stalls = Counter({match[1]: value for metric, value in launch.values.items() if (match := _STALL.fullmatch(metric))})
    total = sum(stalls.values())
    del stalls["selected"]  # a warp that issues waits for nothing
    reason, longest = stalls.most_common(1)[0] if stalls else (None, 0.0)
    pipes = Counter({match[1]: value for metric, value in launch.values.items() if (match := _PIPE.fullmatch(metric))})
    pipe, busy = pipes.most_common(1)[0] if pipes else (None, None)
    return {"instructions an element": launch.case and launch.get(_ISSUED, digits=2, scale=32 / launch.case.elements),
            "sectors a load": sectors[0], "L1 had, %": launch.get(_HITS, _SECTORS.format("ld"), scale=100),
            "sectors a store": sectors[1], "local memory": None if None in local else int(sum(local)),
            "occupancy, %": launch.get(_ACHIEVED), "at most, %": launch.get(_POSSIBLE),
            "registers": registers if registers is None else int(registers),
            "warps wait for": reason and f"{_words(reason)}, {round(100 * longest / total)}%",
            "busiest pipe": pipe and f"{_PIPES.get(pipe, pipe)}, {round(busy)}%"}


def _words(reason: str) -> str:
    own = reason.replace("_", " ")
    return f"{_WAITS[reason]} ({own})" if reason in _WAITS else own


def _labels(launches: Sequence[Launch]) -> list[str]:
    """The case of each launch; with its kernel and a number where a case has several."""
    base = [launch.case.label if launch.case else launch.kernel for launch in launches]
    repeated = {label for label, count in Counter(base).items() if count > 1}
    so_far: Counter = Counter()
    labels = []
    for label, launch in zip(base, launches):
        so_far[label] += 1
        kernel = f" {launch.kernel}" if launch.case else ""
        labels.append(f"{label},{kernel} {so_far[label]}" if label in repeated else label)
    return labels


def _without(name: str, cases: Sequence[Case | Rival], title: str, why: str) -> list[dict]:
    print(f"{why}.\nWhat follows is known without counters.")
    gbps = copy_gbps()
    limits, reasons = [], []
    for case in cases:
        found = known(case)
        near = round(100 * case.must_move / gbps / 1e3 / found.us, 1)
        limits.append({"launch": case.label, "µs": found.us, "must move, MB": _must_move(case), "a copy's time, %": near,
                       "limit": "at a copy's rate" if near >= NEAR else "not known"})
        reasons.append({"launch": case.label, "occupancy at most, %": found.occupancy, "registers": found.registers,
                        "sectors a load": found.load, "sectors a store": found.store, "local memory": found.spills})
    results.note("measured", title, f"{len(limits)} cases without counters")
    caption = (f"On {here()}, without counters: times by CUDA events; sectors by labkit.trace, on the CPU; registers by "
               "torch.profiler; spilled bytes a thread by ptxas; the occupancy that these allow")
    keep({name: results.table_of(f"{title}, without counters", limits),
          f"{name}_why": results.table_of(f"{title}: why, without counters", reasons)}, caption)
    return limits
