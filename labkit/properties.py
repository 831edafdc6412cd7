"""What `check` looks at beside the cases: large inputs and NaN, repeated calls, order, streams, gradients, registration."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import itertools
from typing import Any, Iterable

import torch
from torch.autograd.gradcheck import GradcheckError

from labkit.apart import launched_apart
from labkit.cases import bits, draw_inputs, draw_special, new_memory_is_nan, usual_shape
from labkit.launching import Launch, guarded, launch_of
from labkit.operator import Operator
from labkit.ordering import differences
from labkit.references import dtype_of, exact_outputs, shape_of
from labkit.verdict import Verdict, called

SEEDS = 3  # shuffled orders on the CPU
REPEATS = 20  # of a launch on a GPU
ELEMENTS = 1 << 20  # of that launch: thousands of blocks
SLOW = 20_000_000  # clocks for which a stream is kept busy: about ten milliseconds, so that others on the GPU do not hide it


def check_that_it_returns(operator: Operator, versions: list[int], modes: list[str], dtypes: list[torch.dtype],
                          verdict: Verdict) -> None:
    """On the CPU, where a kernel that reads far outside of its arrays, or never ends, would take this process with it: each
    version, mode and case in another process first, in one type.
    """
    if operator.device.type != "cpu":
        return
    dtype, tried = _usual_dtype(dtypes), []
    for mode, case in itertools.product(modes, operator.reference.CASES):
        with contextlib.suppress(Exception):  # what is raised, the check of the case will see again
            inputs = draw_inputs(operator.reference, mode, dtype, operator.device, case, seed=0)
            launch = launch_of(operator, mode, versions[0], inputs)
            tried += [(case, dataclasses.replace(launch, version=version)) for version in versions]
    returned = 0
    try:
        for _ in launched_apart([functools.partial(_tried, launch) for _, launch in tried]):
            returned += 1
    except RuntimeError as error:
        case, launch = tried[returned]
        verdict.fault("launch", f"{operator.name} v{launch.version} {launch.mode}, {str(dtype).removeprefix('torch.')}, "
                                f"{case}: {error}")


def _tried(launch: Launch) -> list[torch.Tensor]:
    with contextlib.suppress(Exception):  # likewise
        # In memory with margins: what is stored just outside is for that check to find.
        launch(launch.inputs, list(map(guarded, launch.new_outputs())))
    return []


def check(operator: Operator, version: int, modes: list[str], dtypes: list[torch.dtype], seed: int, verdict: Verdict) -> None:
    """Looks at one version; tells the verdict of each fault."""
    dtype = _usual_dtype(dtypes)
    for mode in modes:
        where = f"{operator.name} v{version} {mode}"
        with verdict.of_a_call(where):
            for each in dtypes:
                _special(operator, version, mode, each, seed, verdict)
            _again(operator, version, mode, dtype, verdict)
            repeatable = getattr(operator.reference, "REPEATABLE", True)
            if operator.device.type == "cuda":
                if repeatable:
                    _repeats(_launch(operator, version, mode, dtype, ELEMENTS), verdict)
                _late_input(_launch(operator, version, mode, dtype, ELEMENTS), verdict)
            else:
                launch = _launch(operator, version, mode, dtype)
                _names_its_stream(launch, verdict)
                for difference in called(differences, launch, SEEDS)[:1] if repeatable else []:
                    verdict.fault("order", f"{where}: {difference}")
    where = f"{operator.name} v{version}"
    with verdict.of_a_call(where):
        _function_again(operator, version, dtype, verdict)
        if torch.float64 in dtypes:
            _gradients(operator, version, verdict)


def check_registration(operator: Operator, version: int, modes: list[str], dtypes: list[torch.dtype], verdict: Verdict) -> None:
    """Holds what an operator says of itself (schema, shapes, autograd) against what it does, by torch.library.opcheck, and
    by the versions that autograd counts of the tensors that it writes.
    """
    reference = operator.reference
    turned = any(case.get("layout") == "transposed" for case in reference.CASES)
    for mode in modes:
        # A mode beside the first is the gradient of it, and has one itself where the function is differentiable twice.
        orders = max((orders for _, orders in reference.DIFFERENTIABLE), default=0)
        has_gradient = orders > (mode != next(iter(reference.MODES)))
        for transposed in (False, True)[:1 + turned]:
            inputs = _random(reference, mode, (7, 5) if transposed else (5, 7), _usual_dtype(dtypes), operator.device)
            inputs = [t.t() if transposed else t for t in inputs]
            made = _tuple(called(getattr(operator.ops, mode), *inputs, version))
            into = (*inputs, *map(torch.empty_like, made), version)
            tracked = (*(t.detach().requires_grad_(has_gradient) for t in inputs), version)
            for name, arguments in ((mode, tracked), (f"{mode}_out", into)):
                try:
                    torch.library.opcheck(getattr(operator.ops, name).default, arguments)
                except Exception as error:  # of several kinds, all of them findings
                    said = next(line for line in f"{error}".splitlines() if line.strip())
                    verdict.fault("registration", f"{operator.name} {name}, {'transposed' if transposed else 'contiguous'}: "
                                                  f"{said}")
                else:
                    if arguments is into:
                        _says_what_it_overwrites(operator, version, mode, into[:-1], verdict)


def _says_what_it_overwrites(operator: Operator, version: int, mode: str, tensors: tuple, verdict: Verdict) -> None:
    names, out_names, _ = operator.reference.MODES[mode]
    before = [t._version for t in tensors]
    called(getattr(operator.ops, f"{mode}_out"), *tensors, version)
    for name, t, old in zip((*names, *out_names), tensors, before, strict=True):
        if name in out_names and t._version == old:
            verdict.fault("registration", f"{operator.name} {mode}_out does not tell autograd that it overwrites `{name}`: a "
                                          "graph that has saved it would go on with other numbers. Call mark_dirty, of "
                                          "kernels/include/torch_op.h, before the launch")
        if name in names and t._version != old:
            verdict.fault("registration", f"{operator.name} {mode}_out tells autograd that it overwrites `{name}`, an input")


def _usual_dtype(dtypes: list[torch.dtype]) -> torch.dtype:
    return torch.float32 if torch.float32 in dtypes else dtypes[0]


def _random(reference: Any, mode: str, shape: tuple, dtype: torch.dtype, device: torch.device | None = None,
            generator: torch.Generator | None = None) -> list[torch.Tensor]:
    """Normal numbers for each input of a mode."""
    return [torch.randn(shape_of(reference, name, shape), dtype=dtype_of(reference, name, dtype), device=device,
                        generator=generator) for name in reference.MODES[mode][0]]


def _launch(operator: Operator, version: int, mode: str, dtype: torch.dtype, elements: int | None = None) -> Launch:
    shape = usual_shape(operator.reference)
    if elements:
        shape = (elements,) if len(shape) == 1 else (1000, elements // 1000)
    return launch_of(operator, mode, version,
                     draw_inputs(operator.reference, mode, dtype, operator.device, {"shape": shape}, seed=0))


# -- numbers ------------------------------------------------------------------------------------------------

def _special(operator: Operator, version: int, mode: str, dtype: torch.dtype, seed: int, verdict: Verdict) -> None:
    names, out_names, _ = operator.reference.MODES[mode]
    inputs = draw_special(operator.reference, mode, dtype, operator.device, seed)
    returned = called(getattr(operator.ops, mode), *inputs, version)
    for name, got, exact in zip(out_names, _tuple(returned), exact_outputs(operator.reference, mode, inputs), strict=True):
        small = exact.abs() < 0.99 * torch.finfo(got.dtype).max  # beyond, a rounding may make it infinite
        for wrong, what in ((small & ~got.isfinite(), "should be finite"), (exact.isnan() & ~got.isnan(), "should be NaN")):
            if wrong.any():
                at = tuple(wrong.nonzero()[0].tolist())
                given = ", ".join(f"{label} = {t[at].item():.9g}" for label, t in zip(names, inputs) if t.shape == got.shape)
                verdict.fault("special", f"{operator.name} v{version} {mode}, {str(dtype).removeprefix('torch.')}: "
                                         f"{int(wrong.sum())} elements of {name} {what}; the first at {list(at)}"
                                         f"{': ' + given if given else ''} is {got[at].item():.9g}")


# -- calls one after another --------------------------------------------------------------------------------

def _again(operator: Operator, version: int, mode: str, dtype: torch.dtype, verdict: Verdict) -> None:
    """The same memory with other numbers in it, and the result of a call after the next one."""
    where = f"{operator.name} v{version} {mode}"
    shape = {"shape": usual_shape(operator.reference)}
    first, second = (draw_inputs(operator.reference, mode, dtype, operator.device, shape, seed) for seed in (1, 2))
    call = getattr(operator.ops, mode)
    early = _tuple(called(call, *first, version))
    copies = [t.clone() for t in early]
    expected = [t.clone() for t in _tuple(called(call, *second, version))]
    if any(not torch.equal(bits(t), bits(want)) for t, want in zip(_tuple(called(call, *second, version)), expected)):
        return  # which is for _repeats to say, and leaves nothing to compare with
    if any(not torch.equal(bits(t), bits(copy)) for t, copy in zip(early, copies)):
        verdict.fault("again", f"{where}: a later call changed the result of an earlier one")
    into = [torch.empty_like(t) for t in early]
    write = getattr(operator.ops, f"{mode}_out")
    called(write, *first, *into, version)
    for t, other in zip(first, second):
        t.copy_(other)
    called(write, *first, *into, version)
    if any(not torch.equal(bits(t), bits(want)) for t, want in zip(into, expected)):
        verdict.fault("again", f"{where}: the same memory with other numbers in it gives another result than new memory")


def _function_again(operator: Operator, version: int, dtype: torch.dtype, verdict: Verdict) -> None:
    """The function that models call, twice on the same tensors, whose numbers change, as a parameter's do."""
    mode = next(iter(operator.reference.MODES))
    shape = {"shape": usual_shape(operator.reference)}
    tensors, others = (draw_inputs(operator.reference, mode, dtype, operator.device, shape, seed) for seed in (1, 2))

    def function(*inputs: torch.Tensor) -> Any:
        return operator(*inputs, version=version)

    def differ(one: tuple, two: Iterable[torch.Tensor]) -> bool:
        return any(not torch.equal(bits(t), bits(want)) for t, want in zip(one, two, strict=True))

    early = _tuple(called(function, *tensors))
    kept = [t.clone() for t in early]
    for t, other in zip(tensors, others):
        t.copy_(other)
    late = _tuple(called(function, *tensors))
    if differ(early, kept):
        verdict.fault("again", f"{operator.name} v{version}: a later call of the function changed the result of an earlier one")
    if differ(late, _tuple(called(function, *others))):
        verdict.fault("again", f"{operator.name} v{version}: the function gives an old result for a tensor with new numbers "
                               "in it")


def _tuple(returned: Any) -> tuple:
    return (returned,) if torch.is_tensor(returned) else tuple(returned)


# -- order and streams --------------------------------------------------------------------------------------

def _repeats(launch: Launch, verdict: Verdict) -> None:
    expected = _outputs(launch, launch.inputs)
    for turn in range(REPEATS):
        for name, got, want in zip(launch.output_names, _outputs(launch, launch.inputs), expected, strict=True):
            differ = bits(got) != bits(want)
            if differ.any():
                verdict.fault("order", f"{launch.title}: {int(differ.sum())} elements of {name} are other bits in repetition "
                                       f"{turn + 1} than at first")


def _late_input(launch: Launch, verdict: Verdict) -> None:
    """On a side stream, behind work that is still to fill the input."""
    expected = _outputs(launch, launch.inputs)
    late, outputs = [torch.full_like(t, torch.nan) for t in launch.inputs], launch.new_outputs()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(SLOW)
        for t, value in zip(late, launch.inputs):
            t.copy_(value)
        launch(late, outputs)
    torch.cuda.synchronize()
    if any((got.isnan() & ~want.isnan()).any() for got, want in zip(outputs, expected)):
        verdict.fault("stream", f"{launch.title}: on a side stream it did not wait for the work before it there; launch on "
                                "torch's current stream")


def _names_its_stream(launch: Launch, verdict: Verdict) -> None:
    count = ctypes.CDLL(str(launch.operator.library)).cuda_host_launches_without_a_stream
    count.restype = ctypes.c_ulonglong
    before = count()
    called(launch, launch.inputs, launch.new_outputs())
    if count() != before:
        verdict.fault("stream", f"{launch.title}: a launch names no stream; on a GPU it would run on the default one, whatever "
                                "stream torch is in. Name it: <<<grid, block, shared, stream>>>")


def _outputs(launch: Launch, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    outputs = launch.new_outputs()
    called(launch, inputs, outputs)
    return outputs


# -- gradients ----------------------------------------------------------------------------------------------

def _gradients(operator: Operator, version: int, verdict: Verdict) -> None:
    """The function's own gradients, as autograd sees them, against finite differences in float64."""
    generator = torch.Generator().manual_seed(0)
    mode = next(iter(operator.reference.MODES))
    inputs = [t.mul_(1.5).to(operator.device).requires_grad_()
              for t in _random(operator.reference, mode, (3, 5), torch.float64, generator=generator)]
    for options, orders in operator.reference.DIFFERENTIABLE:
        def function(*inputs, options=options):
            return operator(*inputs, version=version, **options)

        try:
            with new_memory_is_nan():
                torch.autograd.gradcheck(function, inputs)
                if orders == 2:
                    torch.autograd.gradgradcheck(function, inputs)
        except GradcheckError as error:
            verdict.fault("gradient", f"{operator.name} v{version}, {options}: {error}")
