"""What a reference module (kernels/<name>/reference.py) says of inputs, outputs and errors, or what holds without a word.

MODES, CASES and DTYPES are described in labkit/checking.py. An operator on tensors of several shapes or types has more:

    DIMENSIONS {"weight": (1,)}: which dimensions of a case's shape an input has; all of them unless it is named
    WIDE       ("mean",): inputs and outputs of the type that 16-bit elements are computed in, which is float32
    MODES      a function with a parameter `dtype` also gets the element type, for what is rounded on the way
    tolerance  one with a parameter `shape` also gets the case's; it may return {output: (ulps, absolute)}
    REPEATABLE False: a result may depend on the order of threads, as with atomic additions of floating-point numbers, so that
               `check` does not ask for the same bits again
"""

from __future__ import annotations

import inspect
from typing import Any, Sequence

import torch


NEEDED = "MODES", "DTYPES", "CASES", "SPREAD", "LARGEST", "tolerance", "DIFFERENTIABLE"


def validate(name: str, reference: Any) -> None:
    """Raises ValueError, which says what to do, for a reference module that lacks something or has it in another form."""
    where = f"{name}/reference.py"
    for needed in NEEDED:
        if not hasattr(reference, needed):
            raise ValueError(f"{where}: there is no {needed}; labkit/checking.py says what it has to be")
    for needed in ("MODES", "DTYPES", "CASES"):
        if not getattr(reference, needed):
            raise ValueError(f"{where}: {needed} is empty, so that nothing would be checked")
    for number, case in enumerate(reference.CASES):
        if not isinstance(case, dict) or not isinstance(case.get("shape"), tuple):
            raise ValueError(f'{where}: CASES[{number}] is {case!r}; it has to be a dict with a shape, {{"shape": (4097,)}}')


def shape_of(reference: Any, name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the input `name` in a case of this shape."""
    dimensions = getattr(reference, "DIMENSIONS", {}).get(name)
    return tuple(shape) if dimensions is None else tuple(shape[d] for d in dimensions)


def dtype_of(reference: Any, name: str, dtype: torch.dtype) -> torch.dtype:
    """The type of the input or output `name` where the elements are of type `dtype`."""
    wide = name in getattr(reference, "WIDE", ()) and dtype in (torch.float16, torch.bfloat16)
    return torch.float32 if wide else dtype


def main_input(reference: Any, mode: str, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """The input whose shape, type and layout stand for the case's: the last one that has all of its dimensions."""
    partial = getattr(reference, "DIMENSIONS", {})
    return [t for name, t in zip(reference.MODES[mode][0], inputs) if name not in partial][-1]


def exact_outputs(reference: Any, mode: str, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What the outputs must be, in float64."""
    function = reference.MODES[mode][2]
    dtype = {"dtype": main_input(reference, mode, inputs).dtype} if _asks_for(function, "dtype") else {}
    outputs = function(*(t.double() for t in inputs), **dtype)
    names = reference.MODES[mode][1]
    if not isinstance(outputs, (tuple, list)) or len(outputs) != len(names):
        what = f"{len(outputs)} outputs" if isinstance(outputs, (tuple, list)) else f"a {type(outputs).__name__}"
        raise ValueError(f"reference.py: the function of MODES[{mode!r}] returned {what}; it has to return a tuple of "
                         f"{len(names)}: {', '.join(names)}")
    return outputs


def models(reference: Any, mode: str, inputs: Sequence[torch.Tensor], shapes: Sequence[torch.Size]) -> list[torch.Tensor]:
    """Tensors whose shape, type and layout the outputs must have: the main input's, or contiguous ones of another shape."""
    main = main_input(reference, mode, inputs)
    types = [dtype_of(reference, name, main.dtype) for name in reference.MODES[mode][1]]
    return [main if (shape, dtype) == (main.shape, main.dtype) else main.new_empty(shape, dtype=dtype)
            for shape, dtype in zip(shapes, types, strict=True)]


def allowed(reference: Any, mode: str, dtype: torch.dtype, version: int, shape: Sequence[int]) -> list[tuple[float, float]]:
    """(ulps, absolute) for each output; twice the tolerance for float64, since the reference is rounded there as well."""
    more = {"shape": tuple(shape)} if _asks_for(reference.tolerance, "shape") else {}
    found = reference.tolerance(dtype, version, mode, **more)
    each = [found[name] if isinstance(found, dict) else found for name in reference.MODES[mode][1]]
    return [(2 * ulps, 2 * absolute) if dtype == torch.float64 else (ulps, absolute) for ulps, absolute in each]


def _asks_for(function: Any, parameter: str) -> bool:
    return parameter in inspect.signature(function).parameters
