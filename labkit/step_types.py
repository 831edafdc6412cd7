"""`step_times`: a training step of one model in float32, tf32 and with autocast in 16 bits, timed side by side."""

from __future__ import annotations

import dataclasses
from typing import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit import machine, results
from labkit.report import NO_GPU, keep, show_recorded
from labkit.room import unless_memory_is_short
from labkit.share import TOO_LARGE
from labkit.summing import matmul_precision
from labkit.timing import Gpu, measure, summarise


@dataclasses.dataclass(frozen=True)
class _Way:
    """What float32 products are computed in, what autocast computes in (None: no autocast), whether the loss is scaled."""

    products: str = "ieee"
    autocast: torch.dtype | None = None
    scaled: bool = False


WAYS = {"float32": _Way(), "tf32": _Way(products="tf32"), "bfloat16 autocast": _Way(autocast=torch.bfloat16),
        "float16 autocast, GradScaler": _Way(autocast=torch.float16, scaled=True)}


def step_times(name: str, make_model: Callable[[], nn.Module], batch: tuple[Tensor, Tensor], title: str,
               rounds: int = 10) -> list[dict]:
    """Times one AdamW step of a model with float32 weights in each of WAYS, in turn, on the GPU; shows and keeps the table.

    name: what the table is called in results/. make_model: called without arguments, once and only where there is a GPU;
    returns a float32 model on it, a function of tokens (B, T) that returns scores (B, T, V). batch: tokens and targets.
    rounds: timed steps a way.

    One model and one optimizer serve all ways. Returns a row a way: the median of a step, its 10th and 90th percentile in
    ms, and how many times as fast as in float32. Without a GPU, or where the model does not fit into its memory, the recorded
    table is shown and [] returned. A GradScaler asks the GPU in each step whether a gradient overflowed, and waits for it.
    """
    if machine.backend() != "cuda":
        return show_recorded([name], title, NO_GPU)
    rows = unless_memory_is_short(lambda: _measured(make_model(), batch, rounds))
    if rows is None:
        return show_recorded([name], title, TOO_LARGE)
    results.note("measured", title, f"{len(rows)} ways, {rounds} rounds")
    keep({name: results.table_of(title, rows, bars={"columns": ["median, ms"], "label": "ms a step"})})
    return rows


def _measured(model: nn.Module, batch: tuple[Tensor, Tensor], rounds: int) -> list[dict]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    scaler = torch.amp.GradScaler("cuda")
    calls = {label: lambda way=way: _step(model, optimizer, scaler, way, *batch) for label, way in WAYS.items()}
    timings = summarise(measure(calls, [()], Gpu(), rounds), None, None)
    slowest = timings[0]["median_us"]
    return [{"step in": row["name"], "median, ms": round(row["median_us"] / 1e3, 2),
             "10–90%, ms": f"{row['low_us'] / 1e3:.2f}–{row['high_us'] / 1e3:.2f}",
             "times as fast as float32": round(slowest / row["median_us"], 2)} for row in timings]


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, way: _Way, tokens: Tensor,
          targets: Tensor) -> Tensor:
    kind = tokens.device.type
    optimizer.zero_grad(set_to_none=True)
    with matmul_precision(way.products):
        with torch.autocast(kind, way.autocast, enabled=way.autocast is not None):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        (scaler.scale(loss) if way.scaled else loss).backward()
    if way.scaled:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    return loss.detach()
