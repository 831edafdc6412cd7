"""Random calls of every operator: right where it claims them, refused where it does not, and never a crash.

Here there are few, the same each time. FUZZ=20000 draws as many, others each time (--hypothesis-seed=N repeats a run):

    FUZZ=20000 python3 -m pytest tests/test_fuzz.py

Where a GPU is, the tests marked `gpu` draw GPU_CALLS. A call that fails is printed as Python, to be written into a test.
"""

import os

import hypothesis
import pytest
import torch
from fuzzing import ELEMENTWISE, NAMES, NEVER, UNFIT, calls, faults, gradients_of, inputs_of, outputs_of
from gradients import gradients
from hypothesis import strategies as st

import labkit
from labkit import checking, machine, references
from labkit.cases import never_written
from labkit.precision import spacing
from labkit.verdict import Refused, Verdict

CALLS = int(os.environ.get("FUZZ", 800))  # of all operators: of their modes, and as many of their functions
GPU_CALLS = 5000


def fuzz(strategy, count, check):
    """Checks `count` drawn values. On a GPU none is made smaller: after a fault every further launch may fail as well."""
    on_gpu, passed = machine.backend() == "cuda", 0
    phases = [hypothesis.Phase.generate] + [hypothesis.Phase.shrink] * (not on_gpu)

    @hypothesis.settings(max_examples=count, deadline=None, database=None, derandomize="FUZZ" not in os.environ, phases=phases,
                         suppress_health_check=list(hypothesis.HealthCheck), print_blob=False)
    @hypothesis.given(strategy)
    def each(drawn):
        nonlocal passed
        stops_at_a_fault(check, drawn)
        passed += 1

    each()
    print(f"{passed} drawn and right")
    assert passed == count


broken = []  # what a GPU said when it could do no more


def stops_at_a_fault(check, drawn):
    """`check(drawn)`; ends pytest where the GPU is lost to this process, since whatever comes after would fail."""
    try:
        if not broken:
            check(drawn)
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
    except Exception as error:  # labkit has one of its own for what an operator raises
        if "CUDA error" not in str(error):
            raise
        broken.append(f"{drawn}: {error}")
    if broken:
        pytest.exit(f"the GPU failed at {broken[0]}", returncode=3)


# -- what is claimed ----------------------------------------------------------------------------------------

def check_mode(op, call):
    """A mode against float64, into given outputs and into new ones: values, layout, inputs, what lies around."""
    case = {"shape": call.shape, "layout": "outputs offset" if call.out_offset else "contiguous"}
    given = checking.given_case(op.reference, call.mode, case, inputs_of(op, call))
    checking.check_case(op, call.version, given, f"{op.name}: {call}", Verdict(ends_at_the_first=True))


def check_function(op, call):
    """The function and autograd's gradients, whatever the layout of what flows back."""
    inputs = inputs_of(op, call)
    before = [t.clone() for t in inputs]
    leaves = [t.detach().requires_grad_() for t in inputs]
    returned = op(*leaves, version=call.version, **call.options)
    returned = (returned,) if torch.is_tensor(returned) else returned
    exact = references.exact_outputs(op.reference, call.mode, inputs)
    allowed = references.allowed(op.reference, call.mode, call.dtype, call.version, call.shape)
    for y, want, (ulps, absolute) in zip(returned, exact, allowed):
        like = torch.empty_like(inputs[-1]) if op.name in ELEMENTWISE else torch.empty(want.shape)
        assert y.stride() == like.stride() and y.dtype == call.dtype
        assert_within(y, want, ulps, absolute)
    grads = gradients_of(returned, call)
    kept = [None if t is None else t.clone() for t in grads]
    some = [(y, g) for y, g in zip(returned, grads) if g is not None]
    got = torch.autograd.grad([y for y, _ in some], leaves, [g for _, g in some])
    whole = [torch.zeros_like(y) if g is None else g for y, g in zip(returned, grads)]
    for grad, t, (want, ulps, absolute) in zip(got, inputs, gradients(op, call, inputs, returned, whole), strict=True):
        assert grad.shape == t.shape and grad.dtype == t.dtype
        assert_within(grad, want, ulps, absolute)
    assert all(torch.equal(t, was) for t, was in zip(inputs, before))
    assert all(torch.equal(g, was) for g, was in zip(grads, kept) if g is not None)


def assert_within(got, want, ulps, absolute):
    error = (got.double() - want).abs()
    assert got.shape == want.shape
    assert bool((error <= ulps * spacing(want, got.dtype) + absolute).all()), f"off by {error.max():.3g}"


def share(count):
    return max(count // (2 * len(NAMES)), 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_mode_is_right_whatever_the_shape_and_layout(name):
    op = labkit.load(name)
    fuzz(calls(op), share(CALLS), lambda call: check_mode(op, call))


@pytest.mark.parametrize("name", NAMES)
def test_a_function_and_its_gradient_are_right_whatever_flows_back(name):
    op = labkit.load(name)
    fuzz(calls(op, mode="forward"), share(CALLS), lambda call: check_function(op, call))


# -- what is not claimed ------------------------------------------------------------------------------------

def check_refusal(op, drawn):
    """An argument that does not fit, or a version that is not there, is an error, and then nothing was written."""
    call, fault = drawn
    inputs, outputs = [t.contiguous() for t in inputs_of(op, call)], outputs_of(op, call)
    before = [t.clone() for t in inputs]
    tensors, version = [*inputs, *outputs], call.version
    if fault.kind == "version":
        version = fault.version
    else:
        hypothesis.assume(fault.kind != "gaps" or tensors[fault.place].numel() > 1)
        tensors[fault.place] = (NEVER | UNFIT)[fault.kind](tensors[fault.place], fault.dtype)
    with pytest.raises((RuntimeError, TypeError)):
        getattr(op.ops, f"{call.mode}_out")(*tensors, version)
    if fault.place < len(inputs) or fault.kind == "version":
        with pytest.raises((RuntimeError, TypeError)):
            getattr(op.ops, call.mode)(*tensors[:len(inputs)], version)
        if call.mode == "forward":
            with pytest.raises((RuntimeError, TypeError, AttributeError)):  # the last of what is no tensor
                op(*tensors[:len(inputs)], version=version)
    assert all(never_written(t).all() for t in outputs) and all(torch.equal(t, was) for t, was in zip(inputs, before))


@st.composite
def unclaimed(draw, op):
    call = draw(calls(op))
    return call, draw(faults(op, call))


OF_TORCH = "ignore:.*(Sparse|nested|quantized|ComplexHalf)"  # warnings that making such tensors gives


@pytest.mark.filterwarnings(OF_TORCH)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_claimed_is_refused_and_nothing_is_written(name):
    op = labkit.load(name)
    fuzz(unclaimed(op), share(CALLS) // 3, lambda drawn: check_refusal(op, drawn))


# -- on a GPU, and many -------------------------------------------------------------------------------------

@pytest.mark.gpu
@pytest.mark.filterwarnings(OF_TORCH)
@pytest.mark.parametrize("name", NAMES)
def test_many_calls_on_a_gpu(name):
    op = labkit.load(name, backend="cuda")
    fuzz(calls(op), share(GPU_CALLS), lambda call: check_mode(op, call))
    fuzz(calls(op, mode="forward"), share(GPU_CALLS), lambda call: check_function(op, call))
    fuzz(unclaimed(op), share(GPU_CALLS) // 3, lambda drawn: check_refusal(op, drawn))


def test_a_gpu_that_is_lost_ends_the_run_and_says_by_which_call(monkeypatch):
    monkeypatch.setattr("test_fuzz.broken", [])
    asked = []

    def faults(drawn):
        asked.append(drawn)
        raise Refused("CUDA error: an illegal memory access was encountered")

    for again in range(2):  # what comes after is not tried
        with pytest.raises(pytest.exit.Exception, match="the GPU failed at the first: CUDA error: an illegal memory access"):
            stops_at_a_fault(faults, ("the first", "the second")[again])
    assert asked == ["the first"]
    with pytest.raises(RuntimeError, match="another"):
        monkeypatch.setattr("test_fuzz.broken", [])
        stops_at_a_fault(lambda drawn: (_ for _ in ()).throw(RuntimeError("another")), "x")
