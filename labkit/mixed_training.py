"""`loss_curves`: one small training run in several precisions, with care and without."""

from __future__ import annotations

import dataclasses
import math
from typing import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit import machine, results
from labkit.environment import one_thread
from labkit.report import here, keep

Batch = tuple[Tensor, Tensor]  # tokens and targets
LAST = 10  # steps over which the final loss is averaged
WARM_UP = 10  # steps over which the learning rate rises; without, the larger model's loss jumps before it falls


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to train: the type of the weights, what autocast computes in (None: no autocast), whether the loss is scaled."""

    weights: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    scaled: bool = False


WAYS = {"float32": Way(),
        "bfloat16 autocast": Way(autocast=torch.bfloat16),
        "float16 autocast, GradScaler": Way(autocast=torch.float16, scaled=True),
        "float16 autocast, no scaler": Way(autocast=torch.float16),
        "bfloat16 weights": Way(weights=torch.bfloat16),
        "float16 weights": Way(weights=torch.float16)}


@dataclasses.dataclass(frozen=True)
class _Step:
    """What one step did: the mean loss of a prediction before it; the shares of all gradients that were 0, of AdamW's mean
    squares of them that are 0 (None until the optimizer has taken a step), and of weights that changed; and whether the step
    was skipped.
    """

    loss: float
    zero: float
    squares_zero: float | None
    changed: float
    skipped: bool


def loss_curves(name: str, make_model: Callable[[], nn.Module], batches: Sequence[Batch], title: str,
                mean_over: float = 1 << 21, learning_rate: float = 1e-3,
                least: dict[str, float] | None = None) -> list[dict]:
    """Trains a model in each of WAYS, from the same weights and on the same batches; shows and keeps table and curves.

    name: what the table is called in results/; <name>_curves is the loss over the steps. make_model: called without
    arguments for each way; returns a float32 model on this machine's device, a function of tokens (B, T) that returns scores
    (B, T, V). batches: one a step, of tokens and targets. title: what is trained, for the heads; the device is added.
    mean_over: how many predictions the loss is a mean over. Each step computes the B * T of one batch and divides by
    mean_over, as gradient accumulation and data parallelism do with a part of a larger batch. learning_rate: of AdamW, at
    most; it rises over the first 10 steps and then falls to 0. least: {label: loss}, marked at the end of the curves: the least
    losses of who knows this or that of the text.

    AdamW divides gradients by their own size, so that mean_over changes next to nothing as long as no gradient is lost.

    Returns a row a way: the mean loss of the last 10 steps (None where a loss was NaN or infinite), the first such step,
    how many steps the scaler skipped, and shares in per cent: of gradients that were 0 and of weights that changed, as the
    mean over the steps with a finite loss, and of AdamW's mean squares of gradients that are 0 after the first step taken. A
    way ends at its first loss that is not finite.
    """
    if len(batches) < LAST:
        raise ValueError(f"loss_curves: batches has {len(batches)} of them; it takes at least {LAST}, one a step")
    title = f"{title}, on {'a GPU' if machine.backend() == 'cuda' else 'the CPU'}"
    if not machine.native_bfloat16():
        print("bfloat16: this GPU has no instructions for it, so PyTorch computes it through float32. The numbers are right, "
              "and the speed is not what bfloat16 has elsewhere.")
    rows, series, ends = [], {}, []
    for label, way in WAYS.items():
        torch.manual_seed(0)
        with one_thread():
            steps = list(_train(make_model(), way, batches, mean_over, learning_rate))
        losses = [step.loss for step in steps]
        finite = math.isfinite(losses[-1])
        squares = next((step.squares_zero for step in steps if step.squares_zero is not None), None)
        series[label] = [round(loss, 4) if math.isfinite(loss) else None for loss in losses]
        series[label] += [None] * (len(batches) - len(losses))
        if not finite and len(losses) > 1:
            ends.append({"label": f"{label}: the last finite loss", "x": len(losses) - 2, "y": round(losses[-2], 4)})
        rows.append({"trained in": label, "final loss": round(sum(losses[-LAST:]) / LAST, 4) if finite else None,
                     "not finite from step": None if finite else len(losses) - 1,
                     "steps skipped": sum(step.skipped for step in steps),
                     "gradients that are 0, %": _mean_percent([step.zero for step in steps if math.isfinite(step.loss)]),
                     "first squares that are 0, %": None if squares is None else _mean_percent([squares]),
                     "weights that change, %": _mean_percent([step.changed for step in steps if math.isfinite(step.loss)])})
    points = ends + [{"label": label, "x": len(batches) - 1, "y": round(loss, 4)} for label, loss in (least or {}).items()]
    curve = {"kind": "curve", "title": title, "x": {"label": "step", "values": list(range(len(batches)))},
             "y": {"label": "loss"}, "series": series, **({"points": points} if points else {})}
    results.note("measured", title, f"{len(rows)} ways to train, {len(batches)} steps")
    keep({name: results.table_of(title, rows), f"{name}_curves": curve}, f"On {here()}")
    return rows


def _train(model: nn.Module, way: Way, batches: Sequence[Batch], mean_over: int, learning_rate: float) -> Iterator[_Step]:
    """A step for each batch, up to the first whose loss is not finite."""
    model = model.to(way.weights)
    weights = list(model.parameters())
    count = sum(p.numel() for p in weights)
    optimizer = torch.optim.AdamW(weights, lr=learning_rate)
    kind = weights[0].device.type
    scaler = torch.amp.GradScaler(kind, enabled=way.scaled)
    for place, (tokens, targets) in enumerate(batches):
        optimizer.param_groups[0]["lr"] = learning_rate * min((place + 1) / WARM_UP, 1 - place / len(batches))
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, way.autocast, enabled=way.autocast is not None):
            scores = model(tokens)
        # In float32 whatever the model computes in: a loss in bfloat16 would be rounded to two digits.
        loss = F.cross_entropy(scores.float().flatten(0, 1), targets.flatten(), reduction="sum")
        scaler.scale(loss / mean_over).backward()
        before, scale = [p.detach().clone() for p in weights], scaler.get_scale()
        zero = _total([p.grad == 0 for p in weights]) / count
        scaler.step(optimizer)
        scaler.update()
        squares = [optimizer.state[p]["exp_avg_sq"] for p in weights if p in optimizer.state]
        squares_zero = _total([square == 0 for square in squares]) / count if squares else None
        changed = _total([p != old for p, old in zip(weights, before)]) / count
        step = _Step(loss.item() / targets.numel(), zero, squares_zero, changed, skipped=scaler.get_scale() < scale)
        yield step
        if not math.isfinite(step.loss):
            return


def _total(found: list[Tensor]) -> int:
    return torch.stack([each.sum() for each in found]).sum().item()


def _mean_percent(shares: list[float]) -> float:
    return round(100 * sum(shares) / len(shares), 1)
