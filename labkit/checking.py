"""`check`: does an operator compute what its reference says, on every case, and nothing beside it?

The reference module of an operator (kernels/<name>/reference.py) says what there is to check:

    MODES      {"backward": (("grad", "x"), ("grad_x",), function on float64 tensors -> tuple of outputs)}
    DTYPES     the element types it claims
    CASES      [{"shape": (4097,), "layout": "offset"}, ...]
    SPREAD, LARGEST    inputs are normal with this spread, clamped to +-LARGEST
    tolerance(dtype, version, mode) -> (ulps, absolute)
    DIFFERENTIABLE     [({"save": "input"}, 2), ...]: options of the function, and how many times autograd goes
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Iterable, NamedTuple

import torch
from torch.autograd.gradcheck import GradcheckError

from labkit import results
from labkit.operator import Operator
from labkit.precision import error_in_ulp, spacing

GUARD = 64  # elements before and after an output; more than a vector, so that a store past the end lands in them


class CheckFailed(AssertionError):
    """An operator gave a wrong output. The message names mode, version, dtype, case and the first mismatches."""


class Worst(NamedTuple):
    """The largest error of a version and mode: as a share of what is allowed, and in ULP for information."""

    share: float
    ulp: float


def check(operator: Operator, versions: Iterable[int] | None = None, modes: Iterable[str] | None = None,
          dtypes: Iterable[torch.dtype] | None = None) -> dict[int, dict[str, Worst]]:
    """Runs the operator's cases against its float64 reference; prints a line a version; raises at the first fault.

    operator: from `labkit.load`. versions, modes, dtypes: all of them unless named.

    For every case and mode, inputs are drawn anew (seeded), and the operator runs twice: into outputs that the check
    made, filled with NaN between two guards of NaN, and through the form that returns new tensors. It fails where
    an output is further from the reference than `reference.tolerance` allows, was not written, where a guard or an
    input was changed, or where the result is not laid out like the last input; a result of another shape has to be
    contiguous. With float64 it also holds the gradients against finite differences (torch.autograd.gradcheck and
    gradgradcheck).

    Returns {version: {mode: Worst}}. Raises CheckFailed.
    """
    reference = operator.reference
    versions = list(operator.versions if versions is None else versions)
    modes = list(reference.MODES if modes is None else modes)
    dtypes = list(reference.DTYPES if dtypes is None else dtypes)
    found = {version: {mode: Worst(0.0, 0.0) for mode in modes} for version in versions}
    for mode, dtype in itertools.product(modes, dtypes):
        for number, case in enumerate(reference.CASES):
            given = _draw(reference, mode, dtype, operator.device, case, seed=number)
            for version in versions:
                found[version][mode] = max(found[version][mode], _check_case(operator, version, given))
    for version in versions:
        if torch.float64 in dtypes:
            _check_gradients(operator, version)
        largest = max(worst.share for worst in found[version].values())
        outcome = (f"{len(modes)} modes x {len(dtypes)} dtypes x {len(reference.CASES)} cases right; largest error "
                   f"{largest:.0%} of the allowed")
        print(f"{operator.name} v{version}: {outcome}")
        results.note("check", f"{operator.name} v{version}, {operator.versions[version]}", outcome)
    return found


class _Given(NamedTuple):
    """One case of one mode and dtype: what every version gets, and what it must give."""

    mode: str
    case: dict
    names: tuple
    inputs: list
    out_names: tuple
    exact: tuple


def _draw(reference: Any, mode: str, dtype: torch.dtype, device: torch.device, case: dict, seed: int) -> _Given:
    names, out_names, function = reference.MODES[mode]
    inputs = draw_inputs(reference, mode, dtype, device, case, seed)
    return _Given(mode, case, names, inputs, out_names, function(*(t.double() for t in inputs)))


def draw_inputs(reference: Any, mode: str, dtype: torch.dtype, device: torch.device, case: dict, seed: int) -> list:
    """The inputs of one case of a mode: seeded normal numbers, as the reference's SPREAD and LARGEST say."""
    names = reference.MODES[mode][0]
    generator = torch.Generator().manual_seed(seed)
    inputs = []
    for name in names:
        spread, largest = (1.0, 2.0) if name == "grad" else (reference.SPREAD, reference.LARGEST)
        values = torch.randn(case["shape"], generator=generator, dtype=torch.float64)
        values = (values * spread).clamp(-largest, largest).to(dtype).to(device)
        layout = case.get("layout", "contiguous")
        if layout in ("last input offset", "outputs offset"):
            layout = "offset" if layout == "last input offset" and name == names[-1] else "contiguous"
        inputs.append(_laid_out(values, layout))
    return inputs


def _check_case(operator: Operator, version: int, given: _Given) -> Worst:
    mode, case, names, inputs, out_names, exact = given
    dtype = inputs[0].dtype
    where = f"{operator.name} v{version} {mode}, {str(dtype).removeprefix('torch.')}, {case}"
    untouched = [_bits(t).clone() for t in inputs]
    allowed = operator.reference.tolerance(dtype, version, mode)
    models = [model_of(inputs[-1], want.shape) for want in exact]

    worst = Worst(0.0, 0.0)
    # Between guards first: a kernel that stores past the end must not do so in memory that is not the check's.
    if _is_flat(inputs[-1]):
        buffers = [_guarded(model, case) for model in models]
        arguments = [*(_in_order_of(inputs[-1], t) for t in inputs), *(view for _, view in buffers)]
        getattr(operator.ops, f"{mode}_out")(*arguments, version)
        _check_untouched(where, names, inputs, untouched)
        for name, (buffer, view), want in zip(out_names, buffers, exact, strict=True):
            worst = max(worst, _compare(f"{where}: {name} (out)", view, want, inputs, names, *allowed))
            view.fill_(torch.nan)
            if not torch.equal(_bits(buffer), _bits(torch.full_like(buffer, torch.nan))):
                raise CheckFailed(f"{where}: wrote outside of {name}, within {GUARD} elements of it")
    with _new_memory_is_nan():
        returned = getattr(operator.ops, mode)(*inputs, version)
    returned = (returned,) if torch.is_tensor(returned) else returned
    for name, got, want, model in zip(out_names, returned, exact, models, strict=True):
        worst = max(worst, _compare(f"{where}: {name}", got, want, inputs, names, *allowed))
        expected = torch.empty_like(model).stride()
        if got.stride() != expected:
            raise CheckFailed(f"{where}: {name} has strides {got.stride()}, torch.empty_like gives {expected}")
    _check_untouched(where, names, inputs, untouched)
    return worst


def model_of(last: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A tensor whose shape and layout an output must have: the last input, or a contiguous one of another shape."""
    return last if shape == last.shape else last.new_empty(shape)


def _check_untouched(where: str, names: tuple, inputs: list, untouched: list) -> None:
    for name, tensor, before in zip(names, inputs, untouched, strict=True):
        if not torch.equal(_bits(tensor), before):
            raise CheckFailed(f"{where}: changed its input {name}")


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


def _is_flat(t: torch.Tensor) -> bool:
    return torch.empty_like(t).stride() == t.stride() and t.untyped_storage().nbytes() >= t.nbytes


def _in_order_of(like: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return t if t.stride() == like.stride() else torch.empty_like(like).copy_(t)


def _guarded(like: torch.Tensor, case: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """(a buffer of NaN, the view of its middle that has like's shape, strides and alignment)."""
    shift = 1 if case.get("layout") in ("offset", "outputs offset") else 0
    buffer = torch.full((like.numel() + 2 * GUARD + shift,), torch.nan, dtype=like.dtype, device=like.device)
    return buffer, buffer.as_strided(like.shape, like.stride(), GUARD + shift)


def _bits(t: torch.Tensor) -> torch.Tensor:
    """The elements as integers, so that a NaN equals itself."""
    return t.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])


@contextlib.contextmanager
def _new_memory_is_nan():
    """Within, torch fills new memory with NaN, so that an element which nobody writes shows."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = fill


def _compare(what: str, got: torch.Tensor, exact: torch.Tensor, inputs: list, names: tuple, ulps: float,
             absolute: float) -> Worst:
    if got.shape != exact.shape:
        raise CheckFailed(f"{what} has shape {tuple(got.shape)}, the reference {tuple(exact.shape)}")
    if got.numel() == 0:
        return Worst(0.0, 0.0)
    allowed = ulps * spacing(exact, got.dtype) + absolute
    error = (got.double() - exact).abs()
    share = torch.where(error == 0, 0.0, error / allowed)  # also where nothing is allowed
    share = torch.where(got.isnan(), torch.inf, share)
    if not bool((share <= 1).all()):
        raise CheckFailed(f"{what}: {_mismatches(got, exact, share, allowed, inputs, names)}")
    return Worst(share.max().item(), error_in_ulp(got, exact).max().item())


def _mismatches(got: torch.Tensor, exact: torch.Tensor, share: torch.Tensor, allowed: torch.Tensor, inputs: list,
                names: tuple, shown: int = 3) -> str:
    wrong = (~(share <= 1)).nonzero()
    lines = [f"{len(wrong)} of {got.numel()} elements are wrong"]
    for index in wrong[:shown]:
        at = tuple(index.tolist())
        # An input of another shape has no element that goes with this one.
        given = ", ".join(f"{name} = {tensor[at].item():.9g}" for name, tensor in zip(names, inputs, strict=True)
                          if tensor.shape == got.shape)
        lines.append(f"  at {list(at)}: {given + '; ' if given else ''}got {got[at].item():.9g}, "
                     f"reference {exact[at].item():.9g}, allowed error {allowed[at].item():.2g}")
    if len(wrong) > shown:
        last = wrong[-1].tolist()
        lines.append(f"  ... up to {last}")
    return "\n".join(lines)


def _check_gradients(operator: Operator, version: int) -> None:
    """The function's own gradients, as autograd sees them, against finite differences in float64."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, generator=generator, dtype=torch.float64).mul_(1.5).to(operator.device).requires_grad_()
    for options, orders in operator.reference.DIFFERENTIABLE:
        def function(x, options=options):
            return operator(x, version=version, **options)

        try:
            torch.autograd.gradcheck(function, x)
            if orders == 2:
                torch.autograd.gradgradcheck(function, x)
        except GradcheckError as error:
            raise CheckFailed(f"{operator.name} v{version}, {options}: {error}") from None
