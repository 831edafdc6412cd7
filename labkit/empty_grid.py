"""`empty_blocks`: a grid of blocks that do nothing, to see what a launch geometry costs before any work."""

from __future__ import annotations

import functools

import torch


def empty_blocks(blocks: int, threads: int) -> None:
    """Starts a grid of so many blocks of so many threads that do nothing. RuntimeError where there is no GPU."""
    if not torch.cuda.is_available():
        raise RuntimeError("empty_blocks: it needs a GPU, and torch sees none here; see `labkit.doctor()`")
    _kernel()(grid=(blocks, 1, 1), block=(threads, 1, 1), args=[])


@functools.cache
def _kernel():
    return torch.cuda._compile_kernel('extern "C" __global__ void empty() {}', "empty")
