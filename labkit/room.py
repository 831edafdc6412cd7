"""A GPU that others use too, or that is small: who is there, giving memory back, and doing with a part of the rows."""

from __future__ import annotations

import gc
import re
from typing import Callable, Sequence

import torch

from labkit import machine

FEWEST_ROWS = 256
BUSY = 20  # per cent of the time; below, it may be a screen
TAKEN = 1024  # MiB beside what this process holds; below, they may be its own context and the driver's


def neighbours() -> str | None:
    """What other processes do with the current GPU, in words, asked while this one does nothing there; None where they do
    little, or nvidia-smi does not tell.
    """
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    told = machine.output("nvidia-smi", "-i", f"GPU-{uuid}", "--query-gpu=utilization.gpu,memory.used",
                          "--format=csv,noheader,nounits") or ""
    if not (found := re.fullmatch(r"(\d+), (\d+)", told)):
        return None
    busy, taken = int(found[1]), int(found[2]) - torch.cuda.memory_reserved() // 2**20
    if busy < BUSY and taken < TAKEN:
        return None
    return (f"other processes use this GPU: it is {busy}% busy, and {taken / 1024:.1f} GiB of its memory are taken; "
            "times hold for what they leave, and vary with them")


def unless_memory_is_short(call: Callable):
    """What the call returns; None where the GPU's memory does not suffice, with what it had allocated free again."""
    try:
        return call()
    except torch.OutOfMemoryError:
        pass  # its traceback holds the tensors of the call: they can only go once this block is left
    free()
    return None


def free() -> None:
    """Gives back what nothing refers to any more: the next model may need it."""
    gc.collect()
    torch.cuda.empty_cache()


def left() -> str:
    """How much of the GPU's memory is free, whoever holds the rest, in words."""
    free_bytes, total = torch.cuda.mem_get_info()
    return f"{free_bytes / 2**30:.1f} of its {total / 2**30:.1f} GiB are free"


def first_rows(tensors: Sequence, part: int) -> tuple:
    """Of the tensors with as many dimensions and rows as the first one the first 1/part of their rows, as views, so that
    addresses stay as aligned as they were; the others as they are. OutOfMemoryError where the rows cannot be shared out so, or
    fewer than FEWEST_ROWS would be left.
    """
    first = tensors[0]
    if part == 1:
        return tuple(tensors)
    if first.dim() == 0 or len(first) % part or len(first) // part < FEWEST_ROWS:
        raise torch.OutOfMemoryError(f"no 1/{part} of the rows of {tuple(first.shape)} can be had")
    return tuple(t[:len(t) // part] if torch.is_tensor(t) and t.dim() == first.dim() and len(t) == len(first) else t
                 for t in tensors)
