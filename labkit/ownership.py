"""`owners`: which thread of which block writes each element of an operator's output, as the trace has seen it."""

from __future__ import annotations

import dataclasses
from typing import Sequence

import torch

from labkit import owners_figure, results
from labkit.launching import extent_of
from labkit.modes import usual
from labkit.operator import Operator
from labkit.report import show_figure
from labkit.tracing import Trace, trace

WARP = 32  # threads


@dataclasses.dataclass(frozen=True)
class Owners:
    """What `labkit.owners` returns: int64 tensors of the output's shape, -1 where nothing was written.

    block: the number of the block in the grid, and thread: that of the thread in its block, both counted x first, then y,
    then z. launches: a dict a launch: kernel, grid, block.
    """

    title: str
    block: torch.Tensor
    thread: torch.Tensor
    launches: list[dict]

    @property
    def warp(self) -> torch.Tensor:
        """The number of the thread's warp in its block."""
        return torch.where(self.thread < 0, -1, self.thread // WARP)

    @property
    def lane(self) -> torch.Tensor:
        """The number of the thread in its warp."""
        return torch.where(self.thread < 0, -1, self.thread % WARP)


@usual
def owners(operator: Operator | str, version: int | None = None, size: int | Sequence[int] | None = None,
           dtype: torch.dtype | None = None, mode: str | None = None, name: str | None = None, show: bool = True) -> Owners:
    """Finds who writes each element of an operator's first output, by tracing one launch on the CPU; draws the first ones.

    operator, version, size, dtype, mode: as for `labkit.trace`. name: what the drawing is called in results/, such as
    "copy_v1_forward_owners" unless given. show: whether the drawing is shown, and kept for `record`.

    The drawing has a cell an element: the first 128 of a vector, the upper left corner of a matrix. Its colour stands for
    the block, its number is the thread's in the block; an outline marks what one warp writes with one request.

    Returns Owners. What is written more than once belongs to the last to write. Raises what `labkit.trace` raises.
    """
    found = trace(operator, version, mode, size, dtype, show=False)
    output, (block, thread) = next(iter(found.writers.items()))
    mine = Owners(found.title, block, thread, found.launches)
    if show:
        record = owners_figure.record(mine.title, block, thread, found.launches, *_one_request(found, output))
        results.add(name or f"{found.name}_owners", record)
        results.note("exact", found.title, f"{int((thread >= 0).sum()):,} elements traced to the threads that write them")
        show_figure(record, results.EXACT)
    return mine


def _one_request(found: Trace, output: str) -> tuple[str, torch.Tensor]:
    """A request that stores to the first output: (whose it is, a bool tensor of the output's shape: what is part of it)."""
    written = found.outputs[0]
    stores = [access for access in found.accesses if access.array == output and access.does == "writes" and not access.shared]
    if not stores:
        return "", torch.zeros(written.shape, dtype=torch.bool)
    store = max(stores, key=lambda access: sum(address is not None for address in access.example))
    # The output begins at a multiple of 512 bytes, from which the trace counts.
    item = written.element_size()
    elements = {byte // item for address in store.example if address is not None
                for byte in range(address, address + store.size, item)}
    flat = torch.zeros(extent_of(written), dtype=torch.bool)
    flat[[element for element in sorted(elements) if element < len(flat)]] = True
    return f"warp {store.warp} of block {store.block}", flat.as_strided(written.shape, written.stride())
