"""One launch of an operator with inputs of its reference: what `trace` and `schedules` run."""

from __future__ import annotations

import dataclasses
import math
from typing import Sequence

import torch

from labkit.build import load
from labkit.checking import draw
from labkit.operator import Operator, kernels_of


@dataclasses.dataclass(frozen=True)
class Launch:
    """A mode and version of an operator, with inputs on the CPU. Call it with input and output tensors to run it."""

    operator: Operator
    mode: str
    version: int
    inputs: list[torch.Tensor]
    output_shapes: list[torch.Size]

    @property
    def input_names(self) -> Sequence[str]:
        return self.operator.reference.MODES[self.mode][0]

    @property
    def output_names(self) -> Sequence[str]:
        return self.operator.reference.MODES[self.mode][1]

    @property
    def title(self) -> str:
        """What is run, such as "gelu v3 forward, 4096 float16"."""
        last = self.inputs[-1]
        shape = " × ".join(map(str, last.shape)) or "scalar"
        return f"{self.operator.name} v{self.version} {self.mode}, {shape} {str(last.dtype).removeprefix('torch.')}"

    def new_outputs(self) -> list[torch.Tensor]:
        """Tensors for the outputs, like the last input, or contiguous where the shape is another; filled with NaN."""
        last = self.inputs[-1]
        unwritten = torch.nan if last.is_floating_point() else -1
        return [(torch.empty_like(last) if shape == last.shape else last.new_empty(shape)).fill_(unwritten)
                for shape in self.output_shapes]

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        getattr(self.operator.ops, f"{self.mode}_out")(*inputs, *outputs, self.version)


def prepare(operator: Operator | str, backend: str, version: int | None, mode: str | None,
            size: int | Sequence[int] | None, dtype: torch.dtype | None,
            inputs: Sequence[torch.Tensor] | None) -> Launch:
    """Builds the operator for `backend` and makes or takes its inputs; the arguments are those of `labkit.trace`."""
    if isinstance(operator, str):
        operator = load(operator, backend=backend)
    else:  # the same source, and one version where it holds one
        only = operator.latest if len(operator.versions) == 1 else None
        with kernels_of(operator.source.parents[1]):
            operator = load(operator.name, only, backend=backend)
    reference, version = operator.reference, operator.latest if version is None else version
    mode = next(iter(reference.MODES)) if mode is None else mode
    if mode not in reference.MODES:
        raise ValueError(f"{operator.name}: mode is {mode!r}; it has {', '.join(reference.MODES)}")
    if version not in operator.versions:
        raise ValueError(f"{operator.name}: version is {version!r}; it has {', '.join(map(str, operator.versions))}")
    names, _, function = reference.MODES[mode]
    if inputs is None:
        shape = (size,) if isinstance(size, int) else tuple(_usual_shape(reference) if size is None else size)
        inputs = draw(reference, mode, dtype or reference.DTYPES[0], torch.device("cpu"), {"shape": shape}, seed=0).inputs
    elif size is not None or dtype is not None:
        raise ValueError(f"{operator.name}: give either inputs, or size and dtype")
    if len(inputs) != len(names):
        raise ValueError(f"{operator.name}: {len(inputs)} inputs; {mode} takes {len(names)}: {', '.join(names)}")
    inputs = [t.detach().cpu() for t in inputs]
    return Launch(operator, mode, version, inputs, [t.shape for t in function(*(t.double() for t in inputs))])


def _usual_shape(reference) -> tuple[int, ...]:
    """Of the cases that `check` runs the smallest with 4096 elements: enough for several blocks, and quick."""
    shapes = sorted((case["shape"] for case in reference.CASES), key=math.prod)
    return next((shape for shape in shapes if math.prod(shape) >= 4096), shapes[-1])
