"""An activation's share of a training step, measured in two ways, and what that share allows.

By profiler: the time of the kernels that the activation launched, forward and backward, over the time of the step,
which is timed without the profiler. By leaving it out: how much shorter the step is with no activation at all. The
first counts kernels alone; the second also sees what the activation costs elsewhere, such as casts of its output, and
gaps between kernels.

All variants train one model in one process, since two of the larger ones do not fit into memory, and take turns, as in
`labkit.bench`. The weights go on changing meanwhile, which the times do not depend on.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Callable, Sequence

import torch

from labkit import machine, results
from labkit.arguments import named
from labkit.gpu_trace import Kernel, attribute, marked, short, traced
from labkit.output_errors import WrongResult
from labkit.report import NO_GPU, here, keep, show_recorded, show_table
from labkit.room import free, unless_memory_is_short
from labkit.timing import WARM_UP_CALLS, Gpu, measure, summarise

Activation = Callable[[torch.Tensor], torch.Tensor]
Step = Callable[..., torch.Tensor]  # runs one training step with an activation; returns the loss


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A variant that is a whole model through torch.compile, with this activation in it: step(activation, compiled=True).

    What it does itself to the activation cannot be told from the rest of the model.
    """

    activation: Activation

BASELINE = "no activation"
OF_KERNELS = ["its kernels", "its ms", "all kernels, ms"]  # columns
TOO_LARGE = "the model does not fit into this GPU's memory"
PROFILES = 3  # an odd number of steps
MOST_KERNELS = 15  # rows of the table of kernels


def trains_alike(variants: dict[str, Activation], make_step: Callable[[], Step], title: str, steps: int = 20,
                 tolerance: float = 0.01) -> dict[str, list[float]]:
    """Trains a model with each variant from the same start, on this machine's backend; each must learn as the first does.

    variants: {label: function of one tensor}. make_step: called without arguments for each variant; returns a function of
    an activation that runs one training step, and always begins with the same weights. steps: how many, at least 2.
    tolerance: the largest difference of a loss, relative to the first variant's at the same step.

    It sees whether a variant's gradient reaches the weights, and whether it is about that function; whether its numbers are
    right to the last digit is what `labkit.check` sees.

    Returns {label: losses}. Raises labkit.output_errors.WrongResult for a loss that is NaN or infinite, that does not fall, or
    that leaves the tolerance.
    """
    named("trains_alike", "variants", variants)
    losses: dict[str, list[float]] = {}
    for label, activation in variants.items():
        step = make_step()
        losses[label] = [step(activation).item() for _ in range(steps)]
        if not all(map(math.isfinite, losses[label])) or losses[label][-1] >= losses[label][0]:
            raise WrongResult(f"{title}, {label}: the loss does not fall: {losses[label]}")
    expected = next(iter(losses.values()))
    rows = []
    for label, found in losses.items():
        worst = max(abs(loss - right) / right for loss, right in zip(found, expected))
        rows.append({"variant": label, "loss at first": round(found[0], 4), f"after {steps - 1} steps": round(found[-1], 4),
                     "largest difference, %": round(100 * worst, 3)})
        if worst > tolerance:
            raise WrongResult(f"{title}, {label}: a loss differs by {100 * worst:.2f}% from that of {next(iter(losses))!r}, "
                              f"more than {100 * tolerance}%: {found} against {expected}")
    show_table(results.table_of(title, rows))
    results.note("check", title, f"{len(rows)} variants learn alike, to within "
                                 f"{max(row['largest difference, %'] for row in rows)}%, in {steps} steps")
    return losses


def step_share(name: str, variants: dict[str, Activation | Compiled], make_step: Callable[[], Step], title: str,
               rounds: int = 20, tokens: int | None = None) -> list[dict]:
    """Measures each variant's share of a training step on the GPU; shows and keeps the tables.

    name: what the table is called in results/; <name>_of_kernels holds the columns of kernels alone, and <name>_kernels the
    first variant's kernels by their time.
    variants: {label: function of one tensor, or Compiled}. make_step: called without arguments, once and only where there is a
    GPU; returns a function of an activation that runs one training step and waits for nothing, so that one model serves all
    variants. title: the tables' head. rounds: timed steps a variant. tokens: of a batch, for a column of tokens a second.

    Returns a row a variant, and one for BASELINE, with: the median of a step in ms, its 10th and 90th percentile; the time
    of all its kernels (where that is far less, the GPU waits for the host); the activation's kernels, their number and
    time, forward and backward; their share of the step's time; the share of the step that is saved without an
    activation; the most memory that PyTorch had allocated. Where a variant runs out of memory the row holds None, and of a
    Compiled one the activation's columns do. Without a GPU, or where the model does not fit into its memory, the recorded
    tables are shown and [] is returned.
    """
    if BASELINE in variants or not variants or rounds < 2:
        raise ValueError(f"step_share: it takes variants other than {BASELINE!r}, which it adds, and at least 2 rounds; got "
                         f"{list(variants)} and {rounds}")
    why = NO_GPU
    if machine.backend() == "cuda":
        step = unless_memory_is_short(make_step)
        if step is not None:
            rows = _measured(name, {**variants, BASELINE: _nothing}, step, title, rounds, tokens)
            del step
            free()
            return rows
        why = TOO_LARGE
    return show_recorded([name, f"{name}_of_kernels", f"{name}_kernels"], title, why)


def share_over(name: str, variants: dict[str, Activation], sizes: Sequence[int], make_step: Callable[[int], Step], title: str,
               label: str) -> dict | None:
    """Measures the share of each variant, by profiler, in models of several sizes; shows, keeps and returns the curve.

    name, variants: as in `step_share`. sizes: at least two. make_step: called with a size, one after another; returns a
    function of an activation that runs one training step. label: what a size is, for the figure's axis. A share is None
    where memory runs out. Without a GPU the recorded curve is shown and None returned.
    """
    if machine.backend() != "cuda":
        show_recorded([name], title)
        return None
    series: dict[str, list] = {variant: [] for variant in variants}
    for size in sizes:
        step = unless_memory_is_short(lambda: make_step(size))
        for variant, activation in variants.items():
            ran = unless_memory_is_short(lambda: _profiled(step, activation)) if step else None
            series[variant].append(ran and round(_share(ran), 2))
        del step
        free()
    curve = {"kind": "curve", "title": title,
             "x": {"label": label, "values": list(sizes), "scale": "log", "ticks": list(sizes)},
             "y": {"label": "share of all kernels' time, %"}, "series": series}
    results.note("measured", title, f"{len(variants)} variants, {len(sizes)} sizes")
    keep({name: curve})
    return curve


def amdahl(name: str, measured: dict[str, list[dict]], before: str, after: str, title: str) -> list[dict]:
    """What a share allows: with a part gone that takes the share s of the time, a step is 1 / (1 - s) times as fast.

    name: what the table is called in results/; <name>_curve is that cap over the share, with the models as points.
    measured: {model: the rows that `step_share` returned}. before, after: the two variants to compare. title: the
    table's head.

    Returns a row a model: the share of `before`, by profiler; the cap; how many times as fast the step was measured to
    be with no activation at all, which is the cap by experiment; and how many times with `after`. Models without rows,
    or where one of the two ran out of memory, are left out; where none is left, the recorded table is shown and []
    returned.
    """
    rows = []
    for model, found in measured.items():
        by_label = {row["variant"]: row for row in found}
        if by_label and {before, after} - set(by_label):
            raise ValueError(f"amdahl: {before!r} or {after!r} is none of the variants of {model}: {list(by_label)}")
        if by_label and None not in (by_label[before]["ms a step"], by_label[after]["ms a step"]):
            share = by_label[before]["its share, %"]
            ms = {label: row["ms a step"] for label, row in by_label.items()}
            without = ms.get(BASELINE) and round(ms[before] / ms[BASELINE], 2)
            rows.append({"model": model, "share, %": share, "cap": round(1 / (1 - share / 100), 2), BASELINE: without,
                         f"with {after}": round(ms[before] / ms[after], 2)})
    if not rows:
        return show_recorded([name, f"{name}_curve"], title,
                             NO_GPU if machine.backend() != "cuda" else "no model was measured with both variants")
    keep({name: results.table_of(title, rows), f"{name}_curve": cap_curve(title, rows, f"with {after}")})
    return rows


def cap_curve(title: str, rows: list[dict], measured: str) -> dict:
    """The cap over the share as a "curve" record, with the rows of `amdahl` as its points."""
    shares = list(range(0, 62, 2))
    return {"kind": "curve", "title": title, "x": {"label": "share of the step, %", "values": shares},
            "y": {"label": "times as fast"}, "series": {"cap": [round(1 / (1 - share / 100), 4) for share in shares]},
            "points": [{"label": row["model"], "x": row["share, %"], "y": row[measured]} for row in rows]}


def _nothing(x: torch.Tensor) -> torch.Tensor:
    return x


# -- on a GPU -----------------------------------------------------------------------------------------------

def run(step: Step, variant: Activation | Compiled) -> torch.Tensor:
    """One training step with the variant; returns the loss."""
    return step(variant.activation, compiled=True) if isinstance(variant, Compiled) else step(variant)


def _measured(name: str, variants: dict[str, Activation | Compiled], step: Step, title: str, rounds: int,
              tokens: int | None) -> list[dict]:
    gpu = Gpu()
    memory = {label: unless_memory_is_short(lambda: _peak_memory(step, variant) - gpu.scratch.nbytes)
              for label, variant in variants.items()}
    timings = _timed(variants, memory, step, gpu, rounds)
    ran = {label: _profiled(step, variants[label]) for label in timings}
    rows = [_row(label, timings, ran, memory, isinstance(variant, Compiled), tokens) for label, variant in variants.items()]
    fits = f"{len(timings)} of {len(variants)} variants fit into memory, "
    results.note("measured", title, f"{fits if len(timings) < len(variants) else ''}{rounds} rounds")
    caption = f"On {here()}" + ("; no figures where memory ran out" if len(timings) < len(variants) else "")
    keep({name: results.table_of(title, [{key: row[key] for key in row if key not in OF_KERNELS} for row in rows])}, caption)
    if timings:
        first = next(iter(timings))
        of_kernels = [{key: row[key] for key in ("variant", *OF_KERNELS)} for row in rows]
        keep({f"{name}_of_kernels": results.table_of(f"{title}: kernels", of_kernels),
              f"{name}_kernels": results.table_of(f"{title}: the kernels of {first}", top_kernels(ran[first]))}, caption)
    return rows


def _timed(variants: dict[str, Activation | Compiled], memory: dict[str, int | None], step: Step, gpu: Gpu,
           rounds: int) -> dict[str, dict]:
    """The figures of the variants that fit into memory in turns; the others' entry in `memory` becomes None."""
    while fits := [label for label in variants if memory[label] is not None]:
        calls = {label: lambda variant=variants[label]: run(step, variant) for label in fits}
        samples = unless_memory_is_short(lambda: measure(calls, [()], gpu, rounds))
        if samples is not None:
            return {row["name"]: row for row in summarise(samples, None, None)}
        memory[max(fits, key=memory.get)] = None  # one by one they did fit: what is free was in pieces
    return {}


def _row(label: str, timings: dict[str, dict], ran: dict[str, list[Kernel]], memory: dict[str, int | None], whole: bool,
         tokens: int | None) -> dict:
    row = dict.fromkeys(["ms a step", "10%, ms", "90%, ms", *(["tokens/s"] if tokens else []), "its share, %",
                         "share by leaving it out, %", "memory, GiB", *OF_KERNELS])
    if label not in timings:
        return {"variant": label, **row}
    time, own = timings[label], [kernel for kernel in ran[label] if kernel.part != "rest"]
    row |= {"ms a step": _in_ms(time["median_us"]), "memory, GiB": round(memory[label] / 2**30, 1),
            "all kernels, ms": round(_ms(ran[label]), 3), "10%, ms": _in_ms(time["low_us"]), "90%, ms": _in_ms(time["high_us"])}
    if tokens:
        row["tokens/s"] = round(1e6 * tokens / time["median_us"])
    if not whole:
        row |= {"its share, %": round(100 * _ms(own) / row["ms a step"], 1), "its kernels": len(own),
                "its ms": round(_ms(own), 3)}
        if BASELINE in timings:
            row["share by leaving it out, %"] = round(100 * (1 - timings[BASELINE]["median_us"] / time["median_us"]), 1)
    return {"variant": label, **row}


def _in_ms(us: float) -> float:
    return round(us / 1e3, 3)


def top_kernels(ran: list[Kernel]) -> list[dict]:
    """The kernels that take longest, by name and by whether the activation launched them; a last row for all others."""
    groups: dict[str, list[Kernel]] = {}
    for kernel in ran:
        where = "" if kernel.part == "rest" else f", activation {kernel.part}"
        groups.setdefault(short(kernel.name) + where, []).append(kernel)
    ordered = sorted(groups.items(), key=lambda group: -_ms(group[1]))
    shown, others = ordered[:MOST_KERNELS], [kernel for _, group in ordered[MOST_KERNELS:] for kernel in group]
    if others:
        shown.append((f"{len(ordered) - MOST_KERNELS} others", others))
    return [{"kernel": label, "launches": len(group), "ms": round(_ms(group), 3),
             "share, %": round(100 * _ms(group) / _ms(ran), 2)} for label, group in shown]


def _profiled(step: Step, variant: Activation | Compiled) -> list[Kernel]:
    """What ran in a step: of PROFILES steps, that in which the activation's kernels took the median time."""
    for _ in range(WARM_UP_CALLS):
        run(step, variant)
    seen = variant if isinstance(variant, Compiled) else marked(variant)
    steps = [attribute(traced(lambda: run(step, seen))) for _ in range(PROFILES)]
    return sorted(steps, key=lambda ran: _ms([kernel for kernel in ran if kernel.part != "rest"]))[PROFILES // 2]


def _peak_memory(step: Step, variant: Activation | Compiled) -> int:
    """The most bytes that PyTorch has allocated at a time during a step, the model included."""
    run(step, variant)  # the optimizer allocates its moments in the first one
    torch.cuda.reset_peak_memory_stats()
    run(step, variant)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def _ms(kernels: list[Kernel]) -> float:
    return sum(kernel.us for kernel in kernels) / 1e3


def _share(ran: list[Kernel]) -> float:
    """The activation's part of all kernels' time, in per cent."""
    return 100 * _ms([kernel for kernel in ran if kernel.part != "rest"]) / _ms(ran)
