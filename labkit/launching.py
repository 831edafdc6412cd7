"""One launch of an operator with inputs of its reference: what `trace` and `schedules` run."""

from __future__ import annotations

import dataclasses
import math
from typing import Sequence

import torch

from labkit.build import load
from labkit.cases import draw_inputs, usual_shape
from labkit.operator import Operator, kernels_of
from labkit.references import exact_outputs, main_input, models

LARGEST = 1 << 28  # elements of an input that is drawn here
MARGIN = 1 << 16  # bytes around a tensor in which a stray store does no harm


def extent_of(t: torch.Tensor) -> int:
    """How many elements of memory a tensor spans, from its first to its last, gaps included."""
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) if t.numel() else 0


def guarded(t: torch.Tensor) -> torch.Tensor:
    """A copy with its strides and alignment, in memory that goes on for MARGIN bytes before and after it."""
    margin = MARGIN // t.element_size()
    offset = margin + t.storage_offset() % (512 // t.element_size())
    room = torch.zeros(offset + extent_of(t) + margin, dtype=t.dtype)
    return room.as_strided(t.shape, t.stride(), offset).copy_(t)


@dataclasses.dataclass(frozen=True)
class Launch:
    """A mode and version of an operator, with inputs on the CPU. Call it with input and output tensors to run it.

    outputs: tensors whose shape, type and layout the outputs have.
    """

    operator: Operator
    mode: str
    version: int
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]

    @property
    def input_names(self) -> Sequence[str]:
        return self.operator.reference.MODES[self.mode][0]

    @property
    def output_names(self) -> Sequence[str]:
        return self.operator.reference.MODES[self.mode][1]

    @property
    def title(self) -> str:
        """What is run, such as "gelu v3 forward, 4096 float16"."""
        main = main_input(self.operator.reference, self.mode, self.inputs)
        shape = " × ".join(map(str, main.shape)) or "scalar"
        return f"{self.operator.name} v{self.version} {self.mode}, {shape} {str(main.dtype).removeprefix('torch.')}"

    def new_outputs(self) -> list[torch.Tensor]:
        """Tensors for the outputs, filled with NaN."""
        return [torch.full_like(t, torch.nan if t.is_floating_point() else -1) for t in self.outputs]

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        getattr(self.operator.ops, f"{self.mode}_out")(*inputs, *outputs, self.version)


def launch_of(operator: Operator, mode: str, version: int, inputs: list[torch.Tensor]) -> Launch:
    """A launch whose outputs have the shapes that the reference gives them, and the layout of the main input."""
    shapes = [t.shape for t in exact_outputs(operator.reference, mode, inputs)]
    return Launch(operator, mode, version, inputs, models(operator.reference, mode, inputs, shapes))


def prepare(operator: Operator | str, backend: str, version: int | None, mode: str | None,
            size: int | Sequence[int] | None, dtype: torch.dtype | None,
            inputs: Sequence[torch.Tensor] | None) -> Launch:
    """Builds the operator for `backend` and makes or takes its inputs; the arguments are those of `labkit.trace`."""
    if isinstance(operator, str):
        operator = load(operator, backend=backend, launch=False)
    elif isinstance(operator, Operator):  # the same source, and one version where it holds one
        only = operator.latest if len(operator.versions) == 1 else None
        with kernels_of(operator.source.parents[1]):
            operator = load(operator.name, only, backend=backend, launch=False)
    else:
        raise TypeError(f"operator is {operator!r}; it has to be what labkit.load returns, or the name of a folder of kernels/")
    name, reference, version = operator.name, operator.reference, operator.latest if version is None else version
    mode = next(iter(reference.MODES)) if mode is None else mode
    if mode not in reference.MODES:
        raise ValueError(f"{name}: mode is {mode!r}; it has {', '.join(reference.MODES)}")
    if type(version) is not int or version not in operator.versions:
        raise ValueError(f"{name}: version is {version!r}; it has {', '.join(map(str, operator.versions))}")
    names = reference.MODES[mode][0]
    if inputs is None:
        shape, dtype = _shape(name, reference, size), reference.DTYPES[0] if dtype is None else dtype
        if dtype not in reference.DTYPES:
            known = ', '.join(map(str, reference.DTYPES))
            raise ValueError(f"{name}: dtype is {dtype!r}; it has to be a torch.dtype, one of {known}")
        inputs = draw_inputs(reference, mode, dtype, torch.device("cpu"), {"shape": shape}, seed=0)
    elif size is not None or dtype is not None:
        raise ValueError(f"{name}: give either inputs, or size and dtype")
    if not isinstance(inputs, (list, tuple)) or not all(isinstance(t, torch.Tensor) for t in inputs):
        raise TypeError(f"{name}: inputs is a {type(inputs).__name__}; it has to be a list of tensors: {', '.join(names)}")
    if len(inputs) != len(names):
        raise ValueError(f"{name}: {len(inputs)} inputs; {mode} takes {len(names)}: {', '.join(names)}")
    inputs = [t.detach().cpu() for t in inputs]
    for t, label in zip(inputs, names):
        if torch.empty_like(t).stride() != t.stride() and t.numel() > 0:
            raise ValueError(f"{name}: `{label}` has gaps between its elements, or shares them (shape {tuple(t.shape)}, "
                             f"strides {t.stride()}); a kernel gets dense tensors. Pass {label}.contiguous()")
    try:
        return launch_of(operator, mode, version, inputs)
    except (RuntimeError, IndexError) as error:
        given = ", ".join(str(tuple(t.shape)) for t in inputs)
        raise ValueError(f"{name}: {mode} does not take inputs of the shapes {given}: {error}") from None


def _shape(name: str, reference, size: int | Sequence[int] | None) -> tuple[int, ...]:
    if size is None:
        return usual_shape(reference)
    shape = (size,) if isinstance(size, int) else size
    if not isinstance(shape, (list, tuple)) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"{name}: size is {size!r}; it has to be a number of elements, or a shape such as (64, 96)")
    if math.prod(shape) > LARGEST:
        raise ValueError(f"{name}: size is {size!r}, {math.prod(shape):,} elements; at most {LARGEST:,} are drawn here, and a "
                         "few thousand show the same")
    return tuple(shape)
