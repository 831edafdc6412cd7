"""`hot`: which kernels and operators a function spends its time in, and how few of them make most of it.

On a GPU a kernel counts for the operator that launched it, by torch.profiler's trace, so that nothing counts twice. The
time of a whole step is measured without the profiler, which slows the host down: what of it no kernel fills, the GPU idles.
Without a GPU an operator counts for the time of a CPU's thread in it, less that in the operators that it calls.
"""

from __future__ import annotations

import re
import statistics
import time
from collections import defaultdict
from typing import Callable, Iterable

import torch

from labkit import machine, results
from labkit.gpu_trace import Kernel, attribute, idle, in_order, short, traced
from labkit.report import keep, show_recorded, show_table
from labkit.timing import WARM_UP_CALLS

STEPS = 5
MOST = 12  # rows of a table; the others share one
MOST_OF_THE_TIME = 80  # per cent
REPEATS = 3
NO_OPERATOR = "no operator"
# An operator of labkit's, whose namespace names its build; and what torch.library calls the autograd function around it.
_BUILD = re.compile(r"(\w+)_[0-9a-f]{12}::(\w+)|GeneratedBackwardFor_(\w+)_[0-9a-f]{12}_(\w+)_default")


def hot(name: str, step: Callable[[], object], title: str, steps: int = STEPS) -> list[dict]:
    """Profiles a function and tables where its time goes: the kernels and operators that take most come first.

    name: what the table of kernels is called in results/; <name>_operators has the operators that launched them;
    <name>_summary how many there are, how few make 80% of the time, and how much of it the GPU idles; <name>_curve the share
    of the time over that of the distinct kernels. step: called without arguments, such as one training step; it is called
    about six times as often as `steps` says. title: the tables' head. steps: how many calls are profiled, at least 1.

    A row: its name as in PyTorch's source, shortened; calls a step; ms a step; its share of the time of all kernels, and the
    share that it and those above it make. Kernels of one short name are one; those that overlap count in full each. The
    GPU's idle time is what no kernel fills of a step that nothing profiles: where it is large the host does not launch fast
    enough.

    Returns the rows of the kernels. Without a GPU the recorded tables are shown, then the operators of this CPU by their own
    time, which says nothing of a GPU; these rows are returned, and not kept. Raises ValueError for less than 1 step, and
    where nothing ran.
    """
    if steps < 1:
        raise ValueError(f"hot: steps is {steps}; at least 1 has to be profiled")
    if machine.backend() != "cuda":
        if results.session().lab is not None:
            show_recorded([name, f"{name}_operators", f"{name}_summary", f"{name}_curve"], title)
        rows = _on_the_cpu(step, title, steps)
        results.note("measured", title, f"{len(rows)} rows of operators, on the CPU")
        return rows
    ms = _ms_a_step(step, steps)
    ran = attribute(traced(lambda: [step() for _ in range(steps)]))
    if not ran:
        raise ValueError("hot: the step launched nothing on the GPU; are its tensors on it?")
    kernels = _spent((short(kernel.name), kernel.us) for kernel in ran)
    operators = _spent((_named(kernel.operator) or NO_OPERATOR, kernel.us) for kernel in ran)
    rows, by_operator = ranked(kernels, steps, "kernel"), ranked(operators, steps, "operator")
    summary = _summary(kernels, operators, ran, steps, ms)
    results.note("measured", title, f"{few(kernels)} of {len(kernels)} distinct kernels make {MOST_OF_THE_TIME}% of the time")
    keep({name: results.table_of(f"{title}: kernels", rows),
          f"{name}_operators": results.table_of(f"{title}: the operators that launched them", by_operator),
          f"{name}_summary": results.table_of(f"{title}: how few make most of it", summary),
          f"{name}_curve": curve(kernels, title)})
    return rows


def few(spent: dict[str, list[float]]) -> int:
    """How many of them, those with most time first, make MOST_OF_THE_TIME of it."""
    times = sorted(map(sum, spent.values()), reverse=True)
    wanted, reached = MOST_OF_THE_TIME / 100 * sum(times), 0.0
    for count, spent_here in enumerate(times, 1):
        reached += spent_here
        if reached >= wanted * (1 - 1e-9):
            return count
    return len(times)


def ranked(spent: dict[str, list[float]], steps: int, what: str) -> list[dict]:
    """The table's rows, from {name: the µs of each call}, of `steps` steps; a last one for all beyond MOST."""
    ordered = sorted(spent.items(), key=lambda each: -sum(each[1]))
    shown, others = ordered[:MOST], ordered[MOST:]
    if len(others) > 1:
        shown.append((f"{len(others)} others", [us for _, calls in others for us in calls]))
    else:
        shown += others
    total, so_far, rows = sum(map(sum, spent.values())), 0.0, []
    for label, calls in shown:
        so_far += sum(calls)
        rows.append({what: label, "calls a step": round(len(calls) / steps, 2), "ms a step": round(sum(calls) / steps / 1e3, 4),
                     "share, %": round(100 * sum(calls) / total, 1), "summed up, %": round(100 * so_far / total, 1)})
    return rows


def curve(spent: dict[str, list[float]], title: str) -> dict:
    """The share of the time over the share of the distinct kernels, those with most time first, as a "curve" record."""
    times = sorted(map(sum, spent.values()), reverse=True)
    shares = [100 * sum(times[:k]) / sum(times) for k in range(len(times) + 1)]
    return {"kind": "curve", "title": f"{title}: the time that the busiest kernels make",
            "x": {"label": "share of the distinct kernels, %", "values": [round(100 * k / len(times), 2)
                                                                          for k in range(len(times) + 1)]},
            "y": {"label": "share of all kernels' time, %"}, "series": {"kernels": [round(share, 2) for share in shares]},
            "vertical": [{"label": "20% of the kernels", "x": 20}]}


def own_times(trace: dict) -> list[tuple[str, float]]:
    """(operator, µs) of each call of an operator on the CPU: its time less that of the operators that it called."""
    stacks: dict[int, list[list]] = defaultdict(list)
    found: list[list] = []
    for event in (event for event in in_order(trace) if event.get("cat") == "cpu_op"):
        stack = stacks[event["tid"]]
        while stack and stack[-1][2] <= event["ts"]:
            stack.pop()
        if stack:
            stack[-1][1] -= event["dur"]
        call = [event["name"], event["dur"], event["ts"] + event["dur"]]
        stack.append(call)
        found.append(call)
    return [(name, max(0.0, us)) for name, us, _ in found]


def _on_the_cpu(step: Callable[[], object], title: str, steps: int) -> list[dict]:
    for _ in range(WARM_UP_CALLS):
        step()
    spent = _spent((_named(name), us) for name, us in own_times(traced(lambda: [step() for _ in range(steps)])))
    if not spent:
        raise ValueError("hot: the step called no operator of PyTorch's")
    rows = ranked(spent, steps, "operator")
    show_table(results.table_of(f"{title}: operators by their own time on the CPU, which says nothing of a GPU", rows))
    print(f"{few(spent)} of {len(spent)} operators make {MOST_OF_THE_TIME}% of the time on the CPU.")
    return rows


def _summary(kernels: dict[str, list[float]], operators: dict[str, list[float]], ran: list[Kernel], steps: int,
             ms: float) -> list[dict]:
    begin, end = ran[0].start, max(kernel.start + kernel.us for kernel in ran)
    busy = (end - begin - idle(ran)) / steps / 1e3
    return [{"what": what, "value": value} for what, value in {
        "distinct kernels": len(kernels),
        f"of them make {MOST_OF_THE_TIME}% of the time": few(kernels),
        "that is, of the distinct kernels, %": round(100 * few(kernels) / len(kernels), 1),
        f"operators that make {MOST_OF_THE_TIME}% of the time": few(operators),
        "operators that launch kernels": len(operators),
        "launches a step": round(len(ran) / steps, 1),
        "ms a step, without the profiler": round(ms, 3),
        "in kernels, ms a step": round(busy, 3),
        "the GPU idles, % of a step": round(max(0.0, 100 * (1 - busy / ms)), 1)}.items()]


def _ms_a_step(step: Callable[[], object], steps: int) -> float:
    """The median of REPEATS runs of `steps` steps, by the host's clock, divided by `steps`; after a warm-up."""
    for _ in range(WARM_UP_CALLS):
        step()
    taken = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - begin) * 1e3 / steps)
    return statistics.median(taken)


def _named(operator: str) -> str:
    """An operator's name without the build: gelu::forward for gelu_0123456789ab::forward."""
    found = _BUILD.fullmatch(operator)
    return "::".join(filter(None, found.groups())) if found else operator


def _spent(calls: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for label, us in calls:
        found.setdefault(label, []).append(us)
    return found
