"""Modules that hold an operator: copied, saved, compiled, differentiated twice, under autocast and torch.func.

On a GPU also: graphs, streams, a second device.
"""

import copy
import dataclasses
import io
import os
import pickle
import subprocess
import sys
import warnings

import pytest
import torch
from fuzzing import MATRICES, NAMES

import labkit
from labkit import operator
from labkit.environment import importable


class Holder(torch.nn.Module):
    """A linear layer and an operator behind it."""

    def __init__(self, op, version=None):
        super().__init__()
        self.linear = torch.nn.Linear(6, 8, dtype=torch.float64, device=op.device)
        self.op, self.version = op, version or op.latest

    def forward(self, x):
        return first(called(self.op, self.linear(x), version=self.version))


def called(op, x, **options):
    """The function on x; add_norm gets a residual, a weight and a bias made of x as well."""
    if op.name == "add_norm":
        return op(x, x.sin(), x.cos().mean(0), x.sin().mean(0), **options)
    return op(x, **options)


def first(returned):
    return returned if torch.is_tensor(returned) else returned[0]


def exact(op, x):
    """What `called` must be, differentiable."""
    given = (x, x.sin(), x.cos().mean(0), x.sin().mean(0)) if op.name == "add_norm" else (x,)
    if op.name == "add_norm":
        return torch.nn.functional.layer_norm(x + given[1], x.shape[1:], given[2], given[3], 1e-5)
    return op.reference.MODES["forward"][2](*given)[0]


@pytest.fixture(params=NAMES)
def op(request):
    return labkit.load(request.param)


def drawn(op, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(op.device)


# -- copies -------------------------------------------------------------------------------------------------

def test_a_module_is_copied_pickled_and_saved_and_its_copies_are_their_own(op):
    model, x = Holder(op), drawn(op, 5, 6)
    expected, buffer = model(x), io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)):
        assert torch.equal(other(x), expected) and other.op is op and {other.op: 1} == {op: 1}
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.linear.weight.zero_()
    assert torch.equal(model(x), expected)


def test_what_a_weights_only_load_is_given_is_the_state_and_no_operator(op):
    model, buffer = Holder(op), io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other = Holder(op)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    x = drawn(op, 5, 6)
    assert torch.equal(other(x), model(x))


READS = """
import sys, torch
model = torch.load(sys.argv[1], weights_only=False)
x = torch.load(sys.argv[2])
x.requires_grad_()
y = model(x)
y.sum().backward()
torch.save((y.detach(), x.grad), sys.argv[3])
"""


def test_another_process_reads_saved_modules_and_computes_the_same(tmp_path):
    op = labkit.load("gelu")
    model, x = torch.nn.Sequential(torch.nn.Linear(6, 8, device=op.device), Plain(op)), torch.randn(5, 6, device=op.device)
    names = [str(tmp_path / name) for name in ("model", "x", "result")]
    torch.save(model, names[0])
    torch.save(x, names[1])
    subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", READS, *names], check=True, timeout=300,
                   env=importable({**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}))
    x.requires_grad_()
    y = model(x)
    grad, = torch.autograd.grad(y.sum(), x)
    assert all(torch.equal(got, want) for got, want in zip(torch.load(names[2]), (y, grad)))


class Plain(torch.nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, x):
        return self.op(x)


def test_who_reads_another_build_is_told(monkeypatch):
    op = labkit.load("copy")
    function, arguments = op.__reduce__()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert function(*arguments) is op
    with pytest.warns(RuntimeWarning, match=f"copy was pickled as the build copy_0 and is now {op.namespace}"):
        assert operator.unpickled("copy", None, None, "copy_0") is op
    with pytest.raises(FileNotFoundError, match="no operator 'copi'"):
        operator.unpickled("copi", None, None, "copi_0")


def test_an_operator_of_one_version_is_read_as_that():
    op = labkit.load("copy")
    for versions, named in ((op.versions, None), ({2: op.versions[2]}, 2)):
        function, arguments = dataclasses.replace(op, versions=versions).__reduce__()
        assert function is operator.unpickled and arguments == ("copy", named, None, op.namespace)


# -- torch.compile ------------------------------------------------------------------------------------------

def test_a_compiled_module_follows_shapes_that_change(op):
    torch._dynamo.reset()
    model = Holder(op)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")  # static at first
    for rows in (4, 7, 2):
        x = drawn(op, rows, 6).requires_grad_()
        got, want = compiled(x), exact(op, model.linear(x))
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (got, want)), rtol=1e-11, atol=1e-11)


# -- gradients of gradients, autocast, torch.func -----------------------------------------------------------

def test_a_second_gradient_is_right_or_refused(op):
    for version in op.versions:
        x = drawn(op, 3, 5).requires_grad_()
        if op.name == "add_norm":
            with pytest.raises(NotImplementedError, match="no second gradient"):
                torch.autograd.grad(first(called(op, x, version=version)).sum(), x, create_graph=True)
            continue
        back = drawn(op, *exact(op, x).t().shape).t() if exact(op, x).dim() == 2 else drawn(op, *exact(op, x).shape)
        assert torch.autograd.gradgradcheck(lambda x: first(op(x, version=version)), x, back.requires_grad_())


def test_autocast_leaves_what_comes_in_and_a_linear_layer_before_decides(op):
    kind, taken = op.device.type, torch.bfloat16 in op.reference.DTYPES
    linear = torch.nn.Linear(6, 8, device=op.device)
    x = drawn(op, 4, 6).float()
    with torch.autocast(kind, dtype=torch.bfloat16):
        assert first(called(op, x)).dtype == torch.float32
        if not taken:
            with pytest.raises(RuntimeError, match="is bfloat16; total takes float32 and float64"):
                op(linear(x))
            return
        wide = linear(x)
        y = first(called(op, wide) if op.name != "add_norm" else op(wide, wide, wide[0], wide[1]))
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16 and linear.weight.grad.dtype == torch.float32 and linear.weight.grad.isfinite().all()


def test_forward_mode_and_functional_gradients_are_refused_and_vmap_is_right(op):
    x = drawn(op, 4, 5)
    function = lambda x: first(called(op, x)).sum()  # noqa: E731
    with pytest.raises(NotImplementedError, match="only reverse mode is there"):
        torch.func.jvp(function, (x,), (x,))
    with pytest.raises(RuntimeError, match="setup_context|torch.func|functorch"):
        torch.func.grad(function)(x)
    torch.compiler.reset()
    compiled = torch.compile(lambda x: first(called(op, x)), backend="eager")
    compiled(x)  # before there is any tangent
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="only reverse mode is there"):
        compiled(torch.autograd.forward_ad.make_dual(x, x))
    with pytest.raises(NotImplementedError, match="only reverse mode is there"):
        torch.compile(lambda x: torch.func.jvp(function, (x,), (x,)), backend="eager")(x)
    several = drawn(op, 3, 4, 5)
    got = torch.func.vmap(lambda x: first(called(op, x)))(several)  # torch calls the operator once for each
    torch.testing.assert_close(got, torch.stack([exact(op, x) for x in several]), rtol=1e-12, atol=1e-12)


# -- on a GPU -----------------------------------------------------------------------------------------------

def close(got, want):
    torch.testing.assert_close(got.double(), want.double(), rtol=1e-11, atol=1e-11)


def step(op, x):
    y = first(called(op, x))
    return y, torch.autograd.grad(y.square().sum(), x)[0]


def wanted(op, x):
    x = x.detach().clone().requires_grad_()
    y = exact(op, x)
    return y, torch.autograd.grad(y.square().sum(), x)[0]


@pytest.mark.gpu
def test_a_graph_holds_the_operator_and_its_gradient(op):
    x = drawn(op, 70, 300).requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(op, x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(op, x)
    for factor in (0.5, -1.5):
        with torch.no_grad():
            x.mul_(factor)
        graph.replay()
        for got, want in zip(found, wanted(op, x)):
            close(got, want)


@pytest.mark.gpu
def test_the_gradient_runs_on_the_stream_of_its_forward_pass(op):
    late = drawn(op, 70, 300)
    x = torch.full_like(late, torch.nan)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)  # a launch on another stream would read x before it is filled
        x.copy_(late)
        found = step(op, x.requires_grad_())
    side.synchronize()
    for got, want in zip(found, wanted(op, late)):
        close(got, want)


@pytest.mark.gpu
def test_the_device_is_the_tensor_s_and_the_current_one_stays(op):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    x = drawn(op, 70, 300).to("cuda:1").requires_grad_()
    found = step(op, x)
    assert torch.cuda.current_device() == 0 and all(t.device == x.device for t in found)
    for got, want in zip(found, wanted(op, x)):
        close(got, want)


@pytest.mark.gpu
@pytest.mark.parametrize("name", MATRICES)
def test_tensors_of_the_cpu_are_refused(name):
    op = labkit.load(name)
    with pytest.raises(RuntimeError, match="is on the CPU, and this build runs on CUDA"):
        called(op, torch.ones(3, 4))
