"""A CUDA fault ends in "restart the kernel", and never in another operator's name or in nonsense from the next cell."""

import json
import subprocess
import sys

import nbformat
import pytest
import torch
from nbclient import NotebookClient

import labkit
from labkit import REPOSITORY, poison
from labkit.labs import ThisPython
from labkit.verdict import CheckFailed

ILLEGAL = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported"
SAYS = r"Restart the kernel .* \(an illegal memory access was encountered\) has poisoned this process's context"


class Context:
    """A simulated CUDA context: `breaks` poisons it, as a faulty kernel does, and says nothing."""

    def __init__(self, monkeypatch):
        self.error = None
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)

    def synchronize(self):
        if self.error:
            raise torch.AcceleratorError(self.error)

    def breaks(self, error=ILLEGAL):
        self.error = error


@pytest.fixture
def context(monkeypatch):
    return Context(monkeypatch)


# Of CUDA 13.0's errors those after which, by its driver_types.h, any further work gives the same error until the process
# ends, in the words of cudaGetErrorString.
ENDS_THE_PROCESS = [
    "Invalid access of peer GPU memory over nvlink or a hardware error", "an illegal memory access was encountered",
    "the launch timed out and was terminated", "device-side assert triggered", "hardware stack error",
    "an illegal instruction was encountered", "misaligned address", "operation not supported on global/shared address space",
    "invalid program counter", "unspecified launch failure", "tensor memory not completely freed",
    "the MPS client has been terminated by the server", "an async error has occured in external entity outside of CUDA"]


@pytest.mark.parametrize("error, fault", [
    *((f"CUDA error: {words}\nCUDA kernel errors might be asynchronously reported", words) for words in ENDS_THE_PROCESS),
    ("CUDA error: invalid configuration argument", None), ("CUDA out of memory. Tried to allocate 2.00 GiB", None),
    ("CUDA error: MPS server is not ready to accept new MPS client requests", None), ("gelu: x has 3 dimensions", None)])
def test_faults_that_poison_are_told_from_errors_that_pass(context, error, fault):
    context.breaks(error)
    assert (poison.fault() is None) == (fault is None) and (fault is None or fault.startswith(poison.fault()))


def test_a_process_that_uses_no_gpu_is_not_asked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: pytest.fail("this would start CUDA"))
    assert poison.fault() is None


def test_after_a_fault_nothing_begins_and_no_other_operator_is_blamed(context, session):
    gelu = labkit.load("gelu")
    context.breaks()
    for begin in (lambda: labkit.check(gelu), gelu.first_launch,
                  lambda: labkit.bench("mine", {"mine": lambda: pytest.fail("it was called")}, tuple, bytes=None)):
        with pytest.raises(poison.Poisoned, match=f"^Not begun. {SAYS}"):
            begin()
    assert not session().notes


def test_the_call_that_made_the_fault_keeps_its_own_error_and_ends_in_what_to_do(context):
    @poison.told
    def checked():
        context.breaks()
        return inner()

    @poison.told
    def inner():
        raise KeyError("never reached")

    with pytest.raises(poison.Poisoned, match=SAYS) as found:
        checked()
    assert str(found.value).count("Restart") == 1

    @poison.told
    def faulty():
        context.breaks()
        raise CheckFailed("launch", "gelu v3: CUDA error")

    context.error = None  # another process
    with pytest.raises(CheckFailed, match=f"^gelu v3: CUDA error\n{SAYS}") as found:
        faulty()
    assert found.value.check == "launch"


def test_an_error_of_a_healthy_process_is_left_as_it_is(context):
    error = ValueError("bench: limit", 3)

    @poison.told
    def refuses():
        raise error

    with pytest.raises(ValueError):
        refuses()
    assert error.args == ("bench: limit", 3)


START = "import labkit, torch\nlabkit.start('04_fused_kernel')"
BREAKS = """\
def fails():
    raise torch.AcceleratorError("CUDA error: misaligned address")
torch.cuda.is_initialized = lambda: True
torch.cuda.synchronize = fails
print("launched")
"""


def said(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def test_in_a_notebook_the_cell_that_made_a_fault_says_so_though_it_raised_nothing():
    cells = ["1", START, START, BREAKS, "print('nonsense')"]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    NotebookClient(notebook, kernel_manager_class=ThisPython, allow_errors=True,
                   resources={"metadata": {"path": str(REPOSITORY)}}).execute()
    *healthy, broken, later = map(said, notebook.cells)
    advice = "Restart the kernel (a program: start it anew): a CUDA fault (misaligned address)"
    assert "Restart" not in "".join(healthy)
    assert broken.startswith("launched\n") and broken.count(advice) == 1  # though the lab was started twice
    assert later.count(advice) == 1


FAULTY = """\
import json, torch, labkit
from labkit.mutants import mutant
labkit.results._session.lab = "04_fused_kernel"
good = labkit.load("gelu", version=1)
broken = mutant("fold", 1, "part[t] = x[row * cols + t];", "part[t] = x[row * cols + t + (int64_t(1) << 40)];", backend="cuda")
x = torch.ones(8, device="cuda")
said = []
for call in (lambda: labkit.check(broken), lambda: labkit.check(good), lambda: labkit.load("softmax", version=1),
             lambda: labkit.bench("mine", {"mine": good}, lambda: (x,), bytes=64)):
    try:
        call()
        said.append(["nothing", ""])
    except Exception as error:
        said.append([type(error).__name__, str(error)])
print(json.dumps(said))
"""


@pytest.mark.gpu
def test_a_kernel_that_faults_on_a_gpu_ends_in_restart_the_kernel_and_so_does_all_that_follows():
    done = subprocess.run([sys.executable, "-c", FAULTY], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.stdout, done.stderr
    (first, its_words), *later = json.loads(done.stdout.splitlines()[-1])
    assert first == "CheckFailed" and its_words.startswith("fold v1") and "Restart the kernel" in its_words
    for kind, words in later:
        assert kind == "Poisoned" and "an illegal memory access was encountered" in words
