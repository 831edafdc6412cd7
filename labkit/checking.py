"""`check`: does an operator compute what its reference says, on every case, and nothing beside it?

The reference module of an operator (kernels/<name>/reference.py) says what there is to check:

    MODES      {"backward": (("grad", "x"), ("grad_x",), function on float64 tensors -> tuple of outputs)}
    DTYPES     the element types it claims
    CASES      [{"shape": (4097,), "layout": "offset"}, ...]
    SPREAD, LARGEST    inputs are normal with this spread, clamped to +-LARGEST
    tolerance(dtype, version, mode) -> (ulps, absolute): how far off a kernel may be; of float64 twice that is allowed, since
                       there the reference is rounded too
    DIFFERENTIABLE     [({"save": "input"}, 2), ...]: options of the function, and how many times autograd goes; [] for none

and more where inputs differ in shape or type: see labkit/references.py.
"""

from __future__ import annotations

import itertools
from typing import Any, Iterable, NamedTuple

import torch

from labkit import poison, properties, references, results
from labkit.arguments import count
from labkit.cases import (GUARD, between_guards, bits, draw_inputs, erase, in_order_of, is_flat, never_written,
                          new_memory_is_nan)
from labkit.modes import usual
from labkit.operator import Operator
from labkit.precision import spacing
from labkit.verdict import Verdict, called


class Worst(NamedTuple):
    """The largest error of a version and mode: as a share of what is allowed, and in ULP for information."""

    share: float
    ulp: float


@usual
@poison.told
def check(operator: Operator, versions: Iterable[int] | None = None, modes: Iterable[str] | None = None,
          dtypes: Iterable[torch.dtype] | None = None, seed: int = 0) -> dict[int, dict[str, Worst]]:
    """Runs the operator's cases against its float64 reference; prints a line a version; raises at the first fault.

    operator: from `labkit.load`. versions, modes, dtypes: all of them unless named. seed: of the inputs; another one draws
    others.

    What is checked has names, CHECKS in labkit/verdict.py. For every case and mode the operator runs twice: into outputs
    that the check made between two guards, and through the form that returns new tensors. Then come, version by
    version, large inputs and NaN, calls one after another, other orders of threads (on a GPU: repetition), a stream that is
    not the default one; and with float64 the gradients, against finite differences (torch.autograd.gradcheck and
    gradgradcheck). Last, once, what the operator tells PyTorch of itself (torch.library.opcheck), and autograd of the outputs
    that it overwrites.

    Returns {version: {mode: Worst}}. Raises CheckFailed, whose `check` is the name; TypeError and ValueError for arguments that
    cannot be, and ValueError for a reference module that lacks something.
    """
    if not hasattr(operator, "reference"):
        raise TypeError(f"check: operator is {operator!r}; it has to be what labkit.load returns")
    count("check", "seed", seed)
    references.validate(operator.name, operator.reference)
    versions = _chosen(operator, "versions", versions, operator.versions)
    modes = _chosen(operator, "modes", modes, operator.reference.MODES)
    dtypes = _chosen(operator, "dtypes", dtypes, operator.reference.DTYPES)
    verdict = Verdict(ends_at_the_first=True)
    properties.check_that_it_returns(operator, versions, modes, dtypes, verdict)
    found = judge(operator, versions, modes, dtypes, seed, verdict)
    properties.check_registration(operator, versions[-1], modes, dtypes, verdict)
    for version in versions:
        largest = max(worst.share for worst in found[version].values())
        outcome = (f"{len(modes)} modes x {len(dtypes)} dtypes x {len(operator.reference.CASES)} cases right; largest error "
                   f"{largest:.0%} of the allowed")
        print(f"{operator.name} v{version}: {outcome}")
        results.note("check", f"{operator.name} v{version}, {operator.versions[version]}", outcome)
    return found


def _chosen(operator: Operator, argument: str, chosen: Iterable | None, there: Iterable) -> list:
    """Those that are chosen, all where none are named."""
    has = f"{operator.name} has {', '.join(map(str, there))}"
    if chosen is None:
        return list(there)
    if isinstance(chosen, str) or not isinstance(chosen, Iterable):
        raise TypeError(f"check: {argument} is {chosen!r}; it has to be a list; {has}")
    chosen = list(chosen)
    if not chosen or any(one not in there for one in chosen):
        raise ValueError(f"check: {argument} is {chosen!r}; {has}")
    return chosen


def judge(operator: Operator, versions: list[int], modes: list[str], dtypes: list[torch.dtype], seed: int,
          verdict: Verdict) -> dict[int, dict[str, Worst]]:
    """Looks at the versions, and tells the verdict of every fault; the verdict ends it, or lets it go on."""
    reference = operator.reference
    found = {version: {mode: Worst(0.0, 0.0) for mode in modes} for version in versions}
    for mode, dtype in itertools.product(modes, dtypes):
        for number, case in enumerate(reference.CASES):
            inputs = draw_inputs(reference, mode, dtype, operator.device, case, seed=seed * len(reference.CASES) + number)
            given = given_case(reference, mode, case, inputs)
            for version in versions:
                where = f"{operator.name} v{version} {mode}, {str(dtype).removeprefix('torch.')}, {case}"
                with verdict.of_a_call(where):
                    worst = check_case(operator, version, given, where, verdict)
                    found[version][mode] = max(found[version][mode], worst)
                if "outside" in verdict.faults:
                    return found  # where no guard stands, such a kernel would spoil this process's memory
    for version in versions:
        properties.check(operator, version, modes, dtypes, seed, verdict)
    return found


class Given(NamedTuple):
    """One case of one mode and dtype: what every version gets, and what it must give: the exact outputs, tensors of their type
    and layout, and one ULP of that type at each of their elements.
    """

    mode: str
    dtype: torch.dtype
    case: dict
    names: tuple
    inputs: list
    out_names: tuple
    exact: tuple
    models: list
    ulps: list


def given_case(reference: Any, mode: str, case: dict, inputs: list) -> Given:
    """What `check_case` needs: these inputs, as the mode's names have them in turn, and what follows from them."""
    names, out_names, _ = reference.MODES[mode]
    exact = references.exact_outputs(reference, mode, inputs)
    models = references.models(reference, mode, inputs, [want.shape for want in exact])
    ulps = [spacing(want, model.dtype) for want, model in zip(exact, models, strict=True)]
    dtype = references.main_input(reference, mode, inputs).dtype
    return Given(mode, dtype, case, names, inputs, out_names, exact, models, ulps)


def check_case(operator: Operator, version: int, given: Given, where: str, verdict: Verdict) -> Worst:
    """Runs a mode of a version on one case, both into given outputs and into new ones; tells the verdict each fault.

    where: what a fault's text begins with. Outputs are given where the main input fills its memory without a gap.
    """
    mode, dtype, case, names, inputs, out_names, exact, models, ulps = given
    untouched = [bits(t).clone() for t in inputs]
    allowed = references.allowed(operator.reference, mode, dtype, version, case["shape"])
    main = references.main_input(operator.reference, mode, inputs)

    worst, compared = Worst(0.0, 0.0), [None] * len(out_names)
    # Between guards first: a kernel that stores past the end must not do so in memory that is not the check's.
    if is_flat(main):
        buffers = [between_guards(model, case) for model in models]
        arguments = [*(in_order_of(main, t) if t.shape == main.shape else t for t in inputs), *(view for _, view in buffers)]
        called(getattr(operator.ops, f"{mode}_out"), *arguments, version)
        _check_untouched(where, names, inputs, untouched, verdict)
        compared = [view.clone() for _, view in buffers]
        for name, (buffer, view), want, ulp, most in zip(out_names, buffers, exact, ulps, allowed, strict=True):
            left = never_written(view)
            if left.any():
                verdict.fault("unwritten", f"{where}: {name}: {_places(left)} not written")
            worst = max(worst, _compare(f"{where}: {name} (out)", view, want, ulp, inputs, names, *most, verdict))
            erase(view)
            if not never_written(buffer).all():
                verdict.fault("outside", f"{where}: wrote outside of {name}, within {GUARD} elements of it")
                return worst
    with new_memory_is_nan():
        returned = called(getattr(operator.ops, mode), *inputs, version)
    returned = (returned,) if torch.is_tensor(returned) else returned
    for k, (name, got, want, model, most) in enumerate(zip(out_names, returned, exact, models, allowed, strict=True)):
        if not _same_bits(got, compared[k]):  # else it is right, or told to be wrong
            worst = max(worst, _compare(f"{where}: {name}", got, want, ulps[k], inputs, names, *most, verdict))
        expected = torch.empty_like(model)
        if got.dtype != model.dtype:
            verdict.fault("layout", f"{where}: {name} is {got.dtype} and has to be {model.dtype}")
        if _used_strides(got) != _used_strides(expected):
            verdict.fault("layout", f"{where}: {name} has strides {got.stride()}, torch.empty_like gives {expected.stride()}")
    _check_untouched(where, names, inputs, untouched, verdict)
    return worst


def _check_untouched(where: str, names: tuple, inputs: list, untouched: list, verdict: Verdict) -> None:
    for name, tensor, before in zip(names, inputs, untouched, strict=True):
        if not torch.equal(bits(tensor), before):
            verdict.fault("inputs", f"{where}: changed its input {name}")


def _used_strides(t: torch.Tensor) -> list[int]:
    """Those that an address depends on: none of a tensor without elements, or of a dimension of size 1."""
    return [stride for size, stride in zip(t.shape, t.stride()) if size > 1 and t.numel() > 0]


def _same_bits(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and (one.shape, one.dtype) == (other.shape, other.dtype) and torch.equal(bits(one), bits(other))


def _places(wrong: torch.Tensor) -> str:
    at = wrong.nonzero().tolist()
    return f"{len(at)} of {wrong.numel()} elements, from {at[0]} to {at[-1]}," if at else "no element"


def _compare(what: str, got: torch.Tensor, exact: torch.Tensor, ulp: torch.Tensor, inputs: list, names: tuple, ulps: float,
             absolute: float, verdict: Verdict) -> Worst:
    if got.shape != exact.shape:
        verdict.fault("layout", f"{what} has shape {tuple(got.shape)}, the reference {tuple(exact.shape)}")
        return Worst(0.0, 0.0)
    if got.numel() == 0:
        return Worst(0.0, 0.0)
    allowed = ulps * ulp + absolute
    error = (got.double() - exact).abs()
    share = torch.where(error == 0, 0.0, error / allowed)  # also where nothing is allowed
    share = torch.where(got.isnan(), torch.inf, share)
    if not bool((share <= 1).all()):
        verdict.fault("values", f"{what}: {_mismatches(got, exact, share, allowed, inputs, names)}")
    return Worst(share.max().item(), torch.where(got.isnan(), torch.inf, error / ulp).max().item())


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
