"""`schedules`: the same launch with its threads in several orders; a right kernel gives the same result under each."""

from __future__ import annotations

import dataclasses
import functools
from typing import Sequence

import torch

from labkit import results
from labkit.apart import launched_apart
from labkit.arguments import count
from labkit.environment import environment
from labkit.launching import Launch, guarded, prepare
from labkit.modes import usual
from labkit.operator import Operator

VARIABLE = "LABKIT_HOST_ORDER"  # kernels/host/cuda_host_order.h reads it


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first element that came out differently: of which output, at which index, what it was under which order."""

    order: str
    output: str
    index: tuple[int, ...]
    value: float
    forward: float
    elements: int

    def __str__(self) -> str:
        at = ", ".join(map(str, self.index))
        return (f"{self.order}: {self.elements:,} elements of {self.output} differ, the first at [{at}]: {self.value:.9g}, and "
                f"{self.forward:.9g} in forward order")


@usual
def schedules(operator: Operator | str, version: int | None = None, mode: str | None = None,
              size: int | Sequence[int] | None = None, dtype: torch.dtype | None = None,
              inputs: Sequence[torch.Tensor] | None = None, seeds: int = 6) -> list[Difference]:
    """Runs one launch on the CPU with its blocks and threads in other orders, and says where the results differ.

    The arguments before `seeds` are those of `labkit.trace`. seeds: how many shuffled orders to try, beside forward and
    reverse. In a shuffle the warps of a block, and the lanes of a warp, come in a new order after each barrier; a warp
    stays together, since on a GPU its lanes are never far from each other.

    CUDA promises no order, so a difference means that the result depends on luck: on a data race, or on the order of
    atomic additions of floating-point numbers. No difference proves nothing; `labkit.trace` looks for races whatever the
    order. A thread gives way only where it waits, so no order is tried in which two threads take turns between barriers.
    Outputs are compared bit by bit. Each launch has a process of its own; one that fails, crashes or never ends raises
    RuntimeError, which names the order.

    Returns the differences, one an order and output, in the order tried; [] for none. Prints them.
    """
    count("schedules", "seeds", seeds)
    launch = prepare(operator, "host", version, mode, size, dtype, inputs)
    found = differences(launch, seeds)
    orders = f"forward, reverse and {seeds} shuffled orders"
    print(f"{launch.title}: {'the result depends on the order of threads' if found else f'the same result in {orders}'}")
    for difference in found:
        print(f"  {difference}")
    results.note("exact", launch.title, f"differs in {len({d.order for d in found})} of {seeds + 1} orders" if found else
                 f"the same result in {orders}")
    return found


def differences(launch: Launch, seeds: int) -> list[Difference]:
    """What comes out differently from forward order, in reverse and in `seeds` shuffles; see `schedules`."""
    orders = ["forward", "reverse", *map(str, range(1, seeds + 1))]
    expected, *others = outputs_in(orders, launch)
    found = []
    for order, outputs in zip(orders[1:], others, strict=True):
        label = order if order == "reverse" else f"shuffle {order}"
        for name, want, got in zip(launch.output_names, expected, outputs, strict=True):
            differs = (_bytes(want) != _bytes(got)).any(1).view(want.shape)
            if differs.any():
                index = tuple(differs.nonzero()[0].tolist())
                found.append(Difference(label, name, index, got[index].item(), want[index].item(), int(differs.sum())))
    return found


def outputs_in(orders: Sequence[str], launch: Launch) -> list[list[torch.Tensor]]:
    """The outputs of a launch on the CPU, under each order of its blocks and threads: "forward", "reverse" or a seed as text.

    They run in a process of their own. RuntimeError, which names the order, where a launch fails, crashes or never ends.
    """
    done: list[list[torch.Tensor]] = []
    try:
        for outputs in launched_apart([functools.partial(_launched, launch, order) for order in orders]):
            done.append(outputs)
    except RuntimeError as error:
        raise RuntimeError(f"schedules, order {orders[len(done)]}: {error}") from None
    return done


def _launched(launch: Launch, order: str) -> list[torch.Tensor]:
    inputs, outputs = [[guarded(t) for t in tensors] for tensors in (launch.inputs, launch.new_outputs())]
    with environment(**{VARIABLE: order}):
        launch(inputs, outputs)
    return outputs


def _bytes(t: torch.Tensor) -> torch.Tensor:
    """A row of bytes for each element, so that a NaN equals itself."""
    return t.contiguous().flatten().view(torch.uint8).view(t.numel(), t.element_size())
