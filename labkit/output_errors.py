"""Holding the outputs that were timed against a float64 reference, a slice at a time.

A 16384 x 16384 output is 2 GiB in float64, and a reference has intermediate values of that size. So reference
and comparison go over slices along dimension 0, and never hold the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable

CHUNK = 1 << 24  # elements of an output compared at a time: 128 MiB in float64


class WrongResult(AssertionError):
    """An output differs from the reference by more than the tolerance."""


def max_error(variant: str, reference: Callable, tensors: tuple, output, relative: float, absolute: float,
              rowwise: bool = True):
    """The largest |output - reference(*tensors)|, as a float, over all elements of all outputs.

    `output` is a tensor or a tuple; the reference returns the same in float64. Raises WrongResult, which
    names the variant and the first wrong element, unless |output - reference| <= absolute + relative *
    |reference| everywhere; a NaN is always wrong. rowwise: whether the reference may be given some rows at a time.
    """
    outputs = output if isinstance(output, (tuple, list)) else (output,)
    worst = 0.0
    for begin, end in _slices(tensors, outputs) if rowwise else [(None, None)]:
        expected = reference(*(_cut(tensor, tensors[0], begin, end) for tensor in tensors))
        expected = expected if isinstance(expected, (tuple, list)) else (expected,)
        if len(expected) != len(outputs):
            raise WrongResult(f"{variant}: returns {len(outputs)} tensors, the reference {len(expected)}")
        for place, (got, want) in enumerate(zip(outputs, expected)):
            got = _cut(got, tensors[0], begin, end)
            what = f"{variant}, output {place}"
            worst = max(worst, _compare(what, got, want, relative, absolute, begin or 0))
    return worst


def _sliceable(tensor, first) -> bool:
    return hasattr(tensor, "dim") and tensor.dim() == first.dim() > 0 and len(tensor) == len(first)


def _cut(tensor, first, begin, end):
    return tensor[begin:end] if begin is not None and _sliceable(tensor, first) else tensor


def _slices(tensors, outputs):
    """Ranges of dimension 0 that are small enough; (None, None), the whole, for outputs of another shape."""
    first = tensors[0]
    if not all(_sliceable(output, first) for output in outputs) or len(first) == 0:
        return [(None, None)]
    step = max(1, CHUNK // max(1, math.prod(first.shape[1:])))
    return [(begin, min(begin + step, len(first))) for begin in range(0, len(first), step)]


def _compare(what: str, got, want, relative: float, absolute: float, offset: int) -> float:
    if got.shape != want.shape:
        raise WrongResult(f"{what}: shape {tuple(got.shape)}, but the reference has {tuple(want.shape)}")
    if got.numel() == 0:
        return 0.0
    want = want.double()
    error = (got.detach().double() - want).abs_()
    wrong = ~(error <= absolute + relative * want.abs())  # so written, a NaN is wrong
    count = int(wrong.sum())
    if count:
        index = wrong.nonzero()[0].tolist()
        place = [index[0] + offset, *index[1:]] if index else []
        raise WrongResult(f"{what}: {count:,} of {wrong.numel():,} elements compared are wrong, the first at "
                          f"{place}: {got[tuple(index)].item()} instead of {want[tuple(index)].item()} "
                          f"(tolerance: relative {relative}, absolute {absolute}): its time means nothing")
    return error.max().item()
