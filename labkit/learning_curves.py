"""`learning`: the loss of one small model with each of several variants of an activation, step by step."""

from __future__ import annotations

import math
from typing import Callable, Sequence

from labkit import results
from labkit.arguments import named
from labkit.environment import one_thread
from labkit.output_errors import WrongResult
from labkit.report import here, keep
from labkit.room import free
from labkit.share import Activation, Compiled, Step, run

LAST = 10  # steps over which the final loss is averaged


def learning(name: str, variants: dict[str, Activation | Compiled], make_step: Callable[[], Step], title: str, steps: int = 100,
             tolerance: float | None = None, apart: Sequence[str] = ()) -> list[dict]:
    """Trains a model with each variant from the same weights on the same batches; shows and keeps table and curves.

    name: what the table is called in results/; <name>_curves is the loss over the steps, <name>_apart what `apart` asks for.
    variants: {label: function of one tensor, or Compiled}; the first is what the others are compared with. make_step: called
    without arguments for each variant; returns a function of an activation that runs one training step, and always begins with
    the same weights. title: what is trained. steps: how many, at least 10. tolerance: the largest difference of a final loss
    from the first variant's, relative to it. apart: where the losses are so alike that their curves would hide each other, the
    variants to draw in a figure of their own, how far each is from the first variant at each step; the curve is then that of
    the first variant alone.

    Returns a row a variant: the mean loss of the last 10 steps, its difference from the first variant's in per cent, and the
    largest such difference at any step. None where a loss was NaN or infinite. Without a tolerance it judges nothing; with one
    it raises WrongResult for a run that leaves it or whose loss does not fall, once all is shown.
    """
    if steps < LAST:
        raise ValueError(f"learning: steps is {steps}; it takes at least {LAST}")
    named("learning", "variants", variants, "function or a labkit.Compiled",
          lambda one: callable(one) or isinstance(one, Compiled))
    losses = {}
    for label, activation in variants.items():
        step = make_step()
        with one_thread():
            losses[label] = [run(step, activation).item() for _ in range(steps)]
        del step
        free()
    first = next(iter(losses.values()))
    rows = [{"variant": label, **_compared(found, first)} for label, found in losses.items()]
    drawn = {f"{name}_curves": _curve(title, "loss", {label: [_number(loss) for loss in found]
                                                      for label, found in list(losses.items())[:1 if apart else None]})}
    if apart:
        drawn[f"{name}_apart"] = _curve(f"{title}: apart from {next(iter(losses))}", "difference of the loss, %", {
            label: [_number(100 * (loss / right - 1)) for loss, right in zip(losses[label], first)] for label in apart})
    results.note("measured", title, f"{len(rows)} variants, {steps} steps")
    keep({name: results.table_of(title, rows), **drawn}, f"On {here()}")
    if tolerance is not None:
        _judge(losses, rows, tolerance, title)
    return rows


def _curve(title: str, label: str, series: dict[str, list[float | None]]) -> dict:
    return {"kind": "curve", "title": title, "x": {"label": "step", "values": list(range(len(next(iter(series.values())))))},
            "y": {"label": label}, "series": series}


def _number(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _judge(losses: dict[str, list[float]], rows: list[dict], tolerance: float, title: str) -> None:
    for (label, found), row in zip(losses.items(), rows):
        final, off = row["final loss"], row["difference, %"]
        if final is None or final >= found[0] or abs(off) > 100 * tolerance:
            raise WrongResult(f"{title}, {label}: the loss goes from {found[0]:.4f} to {final}, {off}% off that of "
                              f"{next(iter(losses))!r}; it must fall, and end within {100 * tolerance:g}%")


def _compared(found: list[float], first: list[float]) -> dict:
    columns = "final loss", "difference, %", "largest at a step, %"
    if not all(map(math.isfinite, found)):
        return dict.fromkeys(columns)
    final, expected = (sum(losses[-LAST:]) / LAST for losses in (found, first))
    worst = max(abs(loss - right) / right for loss, right in zip(found, first))
    return dict(zip(columns, (round(final, 4), round(100 * (final / expected - 1), 3), round(100 * worst, 3))))
