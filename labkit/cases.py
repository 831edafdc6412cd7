"""The inputs that an operator is tried with, and the memory that its outputs are put into."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch

from labkit.references import dtype_of, shape_of

GUARD = 64  # elements before and after an output; more than a vector, so that a store past the end lands in them
LARGE, SMALL = 3e4, 1e-4  # sizes of the numbers in `draw_special`: what float16 holds, with room for a gradient
# NaNs with a pattern of their own, which no arithmetic returns: what still has it was not written.
_UNWRITTEN = {torch.float16: 0x7EA5, torch.bfloat16: 0x7FE5, torch.float32: 0x7FC5A5A5, torch.float64: 0x7FF8A5A5A5A5A5A5}
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def draw_inputs(reference: Any, mode: str, dtype: torch.dtype, device: torch.device, case: dict, seed: int) -> list:
    """The inputs of one case of a mode: seeded normal numbers, as the reference's SPREAD and LARGEST say."""
    names = reference.MODES[mode][0]
    generator = torch.Generator().manual_seed(seed)
    inputs = []
    for name in names:
        spread, largest = (1.0, 2.0) if name.startswith("grad") else (reference.SPREAD, reference.LARGEST)
        values = torch.randn(shape_of(reference, name, case["shape"]), generator=generator, dtype=torch.float64)
        values = (values * spread).clamp(-largest, largest).to(dtype_of(reference, name, dtype)).to(device)
        layout = case.get("layout", "contiguous")
        if layout in ("last input offset", "outputs offset"):
            layout = "offset" if layout == "last input offset" and name == names[-1] else "contiguous"
        inputs.append(_laid_out(values, layout))
    return inputs


def draw_special(reference: Any, mode: str, dtype: torch.dtype, device: torch.device, seed: int) -> list:
    """Inputs of the usual shape whose sizes spread evenly, by their logarithm, from SMALL to LARGE; some are NaN.

    A gradient lies in [-2, 2], as in `draw_inputs`, and is nowhere NaN; nor is an input that lacks a dimension.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = []
    for name in reference.MODES[mode][0]:
        shape, its_dtype = shape_of(reference, name, usual_shape(reference)), dtype_of(reference, name, dtype)
        part = torch.rand(shape, generator=generator, dtype=torch.float64)
        sign = torch.randint(2, shape, generator=generator) * 2 - 1
        if name.startswith("grad"):
            inputs.append((sign * 2 * part).to(its_dtype).to(device))
            continue
        values = sign * SMALL * (LARGE / SMALL) ** part
        if len(shape) == len(usual_shape(reference)):
            # Few enough that most rows of a matrix have none.
            values[torch.rand(shape, generator=generator) < 1 / 4096] = torch.nan
            values.view(-1)[-1] = torch.nan
        inputs.append(values.to(its_dtype).to(device))
    return inputs


def usual_shape(reference: Any) -> tuple[int, ...]:
    """Of the cases that `check` runs the smallest with 4096 elements: enough for several blocks, and quick."""
    shapes = sorted((case["shape"] for case in reference.CASES), key=math.prod)
    return next((shape for shape in shapes if math.prod(shape) >= 4096), shapes[-1])


def _laid_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in another layout; only "offset" and "contiguous" exist for fewer than two dimensions."""
    if layout == "contiguous":
        return values
    if layout == "offset":  # starts one element after a multiple of 16 bytes
        room = values.new_empty(values.numel() + 1)
        room[1:] = values.flatten()
        return room[1:].view(values.shape)
    if layout == "transposed":
        return values.t().contiguous().t()
    if layout == "channels_last":
        return values.to(memory_format=torch.channels_last)
    if layout == "strided":
        return torch.stack([values, values], dim=-1).flatten(-2)[..., ::2]
    if layout == "expanded":
        return values[:1].expand(values.shape)
    raise ValueError(f"unknown layout {layout!r} in CASES")


def is_flat(t: torch.Tensor) -> bool:
    """Whether the elements fill their memory without a gap, so that a kernel may write to a tensor like this one."""
    return torch.empty_like(t).stride() == t.stride() and t.untyped_storage().nbytes() >= t.nbytes


def in_order_of(like: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """`t`, or a copy of it, with the strides of `like`."""
    return t if t.stride() == like.stride() else torch.empty_like(like).copy_(t)


def unwritten(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory of which `never_written` can tell afterwards what was not written; every element is a NaN."""
    return erase(torch.empty(numel, dtype=dtype, device=device))


def erase(t: torch.Tensor) -> torch.Tensor:
    """Makes a tensor as `unwritten` returns it."""
    bits(t).fill_(_UNWRITTEN[t.dtype])
    return t


def never_written(t: torch.Tensor) -> torch.Tensor:
    """Where memory from `unwritten` still is as it was: a bool for each element."""
    return bits(t) == _UNWRITTEN[t.dtype]


def between_guards(like: torch.Tensor, case: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """(unwritten memory, the view of its middle that has like's shape, strides and alignment)."""
    shift = 1 if case.get("layout") in ("offset", "outputs offset") else 0
    buffer = unwritten(like.numel() + 2 * GUARD + shift, like.dtype, like.device)
    return buffer, buffer.as_strided(like.shape, like.stride(), GUARD + shift)


def bits(t: torch.Tensor) -> torch.Tensor:
    """The elements as integers, so that a NaN equals itself."""
    return t.view(_INTEGERS[t.element_size()])


@contextlib.contextmanager
def new_memory_is_nan():
    """Within, torch fills new memory with NaN, so that an element which nobody writes shows."""
    # The debug mode is the same switch as torch.use_deterministic_algorithms, which takes seconds to import Inductor.
    before, fill = torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        torch.utils.deterministic.fill_uninitialized_memory = fill
