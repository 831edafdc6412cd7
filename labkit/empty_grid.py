"""`empty_blocks`: a grid of blocks that do nothing, to see what a launch geometry costs before any work."""

from __future__ import annotations

import functools

import torch


def empty_blocks(blocks: int, threads: int) -> None:
    """Starts a grid of so many blocks of so many threads that do nothing. On a GPU alone."""
    _kernel()(grid=(blocks, 1, 1), block=(threads, 1, 1), args=[])


@functools.cache
def _kernel():
    return torch.cuda._compile_kernel('extern "C" __global__ void empty() {}', "empty")
