"""`stale_reads`: how often work that no event orders reads what is not there yet, or overwrites it; `busy` delays others."""

from __future__ import annotations

from typing import Callable

import torch

from labkit import machine, results
from labkit.report import keep, show_recorded

TRIES = 50
ELEMENTS = 1 << 14  # few enough for one thread of the CPU
BUSY = 10_000_000  # clocks: some five milliseconds
Reading = Callable[[int, torch.Tensor, torch.Tensor, "torch.cuda.Stream"], torch.Tensor]


def busy() -> None:
    """Keeps torch's current stream of the GPU busy for about five milliseconds. RuntimeError without a GPU."""
    if not torch.cuda.is_available():
        raise RuntimeError("busy: there is no GPU here, and so no stream to keep busy")
    torch.cuda._sleep(BUSY)


def stale_reads(name: str, readings: dict[str, Reading], title: str) -> list[dict]:
    """Calls each function TRIES times and counts how often it returns something else than it should.

    name: what the table is called in results/. readings: {label: function of (turn, gpu, pinned, side)}. turn: a number, new
    in each call. gpu: a float32 tensor of ELEMENTS elements on the GPU. pinned: one in page-locked memory of the CPU. side: a
    stream beside torch's current one. The function has to return a tensor of its own, on either device, all of whose
    elements are `turn`. Before each call the GPU is idle and both tensors hold another number. title: the table's head.

    A row a function: how many calls returned a tensor with any other element. Without a GPU no function is called; the
    recorded table is shown and [] returned.
    """
    if machine.backend() != "cuda":
        return show_recorded([name], title)
    gpu, pinned = torch.zeros(ELEMENTS, device="cuda"), torch.zeros(ELEMENTS).pin_memory()
    side, rows = torch.cuda.Stream(), []
    for label, reading in readings.items():
        stale = 0
        for turn in range(TRIES + 1):
            gpu.fill_(-1), pinned.fill_(-1)
            torch.cuda.synchronize()
            got = reading(turn, gpu, pinned, side)
            torch.cuda.synchronize()
            stale += turn > 0 and bool((got != turn).any())  # the first makes streams and memory ready
        rows.append({"what": label, f"stale of {TRIES}": stale})
    keep({name: results.table_of(title, rows)})
    results.note("measured", title, ", ".join(f"{row['what']}: {row[f'stale of {TRIES}']}" for row in rows))
    return rows
