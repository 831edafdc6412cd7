"""Launches in a process of their own: what they write comes back, and a crash or a hang costs only that process."""

import ctypes
import os
import signal
import time
import types

import pytest
import torch

import labkit
from labkit import apart, properties
from labkit.apart import launched_apart
from labkit.faulty_launches import wrong_orders
from labkit.launching import Launch
from labkit.mutants import mutant
from labkit.verdict import CheckFailed, Verdict

TICKET = "is_last = atomicAdd(tickets, 1u) == gridDim.x - 1;"
SPIN = "atomicAdd(tickets, 1u); while (atomicAdd(tickets, 0u) < gridDim.x) continue; is_last = blockIdx.x == 0;"
READ = "part[t] = x[row * cols + t];"
FAR = "part[t] = x[row * cols + t + (int64_t(1) << 40)];"


def raises(error=RuntimeError("x has 3 dimensions")):
    raise error


@pytest.mark.parametrize("made", [
    torch.arange(15.0).view(3, 5), torch.arange(24.0).view(4, 6).bfloat16().t(), torch.zeros(0, 3), torch.tensor(7),
    torch.arange(8.0, dtype=torch.float64)[::2]])
def test_what_is_returned_comes_back_and_nothing_else_changes(made):
    beside = torch.zeros(3)

    def launch():
        beside.fill_(1)
        return [made, made + 1]

    (first, second), (again, _) = launched_apart([launch, launch])
    assert torch.equal(first, made) and torch.equal(second, made + 1) and torch.equal(again, made) and not beside.any()


def test_an_error_takes_the_place_of_the_launch_that_raised_it():
    found = launched_apart([lambda: [torch.ones(2)], raises, lambda: [torch.ones(2)]])
    assert torch.equal(next(found)[0], torch.ones(2))
    with pytest.raises(RuntimeError, match="^x has 3 dimensions$"):
        next(found)


def test_an_error_of_any_kind_is_raised_as_one_that_the_callers_expect():
    with pytest.raises(RuntimeError, match="^no such file$"):
        next(launched_apart([lambda: raises(OSError("no such file"))]))


@pytest.mark.parametrize("crash, says", [
    (lambda: ctypes.string_at(1), "by SIGSEGV: a thread accessed memory far outside of its arrays; labkit.trace says which .*"),
    (os.abort, "by SIGABRT"), (lambda: os.kill(os.getpid(), signal.SIGFPE), "by SIGFPE"), (lambda: os._exit(3), "with 3"),
    (lambda: os._exit(0), "with 0")])
def test_a_crash_is_told(crash, says, capfd):
    with pytest.raises(RuntimeError, match=f"^the launch ended its process {says}. This process goes on$"):
        list(launched_apart([crash]))
    assert capfd.readouterr().err == ""


def test_a_launch_without_end_is_ended(monkeypatch):
    monkeypatch.setattr(apart, "LIMIT", 0.5)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="did not end within 0.5 seconds"):
        list(launched_apart([lambda: time.sleep(60)]))
    assert time.monotonic() - began < 10


def test_schedules_survives_a_kernel_that_reads_far_outside(session):
    broken = mutant("fold", 1, READ, FAR)
    with pytest.raises(RuntimeError, match="order forward: the launch ended its process by SIGSEGV"):
        labkit.schedules(broken, 1, size=(2, 256))
    assert wrong_orders(broken, 1, (2, 256)) == "fails"


def test_schedules_survives_a_kernel_that_never_ends(session, monkeypatch):
    monkeypatch.setattr(apart, "LIMIT", 2.0)
    broken = mutant("total", 2, TICKET, SPIN)
    with pytest.raises(RuntimeError, match="did not end within 2 seconds"):
        labkit.schedules(broken, 2, size=(8, 1024))


FAR_FOR_ONE = FAR.replace("(int64_t(1) << 40)", "(cols == 5 ? int64_t(1) << 40 : 0)")


@pytest.mark.parametrize("version, name, old, new, case, says", [
    (1, "fold", READ, FAR, r"\(3, 1\)", "the launch ended its process by SIGSEGV"),
    (1, "fold", READ, FAR_FOR_ONE, r"\(257, 5\)", "the launch ended its process by SIGSEGV"),
    (2, "total", TICKET, SPIN, "", "did not end within 2 seconds")],
    ids=["reads far outside", "reads far outside in one shape", "never ends"])
def test_check_survives_them_too_and_names_what_did_not_return(session, monkeypatch, version, name, old, new, case, says):
    monkeypatch.setattr(apart, "LIMIT", 2.0)
    with pytest.raises(CheckFailed, match=f"^{name} v{version} forward, float32, {{'shape': {case}.*{says}") as found:
        labkit.check(mutant(name, version, old, new))
    assert found.value.check == "launch" and not session().notes


@pytest.fixture
def autograd_used_on_a_gpu(monkeypatch):
    """Once a process has used autograd on a GPU, PyTorch refuses it in a copy of that process; here a stand-in does."""
    here, grad = os.getpid(), torch.autograd.grad

    def refused_in_a_copy(*arguments, **options):
        if os.getpid() != here:
            raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing")
        return grad(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "grad", refused_in_a_copy)


def test_a_reference_that_differentiates_keeps_no_launch_from_being_tried_apart(session, autograd_used_on_a_gpu):
    far = mutant("gelu", 1, "out[0] = in[0] * derivative;", "out[0] = *reinterpret_cast<const F*>(int64_t(64));",
                 file="gelu/gelu.cu")
    with pytest.raises(CheckFailed, match="^gelu v1 backward, float32, .* the launch ended its process by SIGSEGV"):
        labkit.check(far)


@pytest.mark.parametrize("name", ["snake", "silu_both"])
def test_nor_an_exercise_from_being_graded(autograd_used_on_a_gpu, name):
    assert labkit.grade(name, labkit.exercises.read(name).solution, show=False).passed


def test_check_names_the_version_the_mode_and_the_case_of_the_launch_that_did_not_return(monkeypatch):
    def tried(launch):
        if (launch.version, launch.mode, launch.inputs) == (2, "backward", "second"):
            os.abort()
        return []

    monkeypatch.setattr(properties, "_tried", tried)
    monkeypatch.setattr(properties, "draw_inputs", lambda reference, mode, dtype, device, case, seed: case)
    monkeypatch.setattr(properties, "launch_of",
                        lambda operator, mode, version, inputs: Launch(operator, mode, version, inputs, []))
    reference = types.SimpleNamespace(CASES=["first", "second", "third"])
    stub = types.SimpleNamespace(name="stub", device=torch.device("cpu"), reference=reference)
    with pytest.raises(CheckFailed, match="^stub v2 backward, float32, second: the launch ended its process by SIGABRT"):
        properties.check_that_it_returns(stub, [1, 2, 3], ["forward", "backward"], [torch.float32],
                                         Verdict(ends_at_the_first=True))
