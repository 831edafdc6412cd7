"""softmax: NaN and infinities as torch has them, the largest numbers, second gradients, bytes, registers, wrong kernels.

What it shares with the other operators on matrices is in test_access_kernels.py.
"""

import math

import pytest
import torch

import labkit
from labkit import machine
from labkit.cubin import compile_cubin
from labkit.verdict import CheckFailed

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# A warp alone, in scalars and in vectors; a block; a row that is too long for registers.
COLS = (3, 37, 256, 1024, 1030, 2048, 8200)


@pytest.fixture(scope="module")
def softmax():
    return labkit.load("softmax")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", COLS)
def test_nan_and_infinities_are_as_torch_has_them(softmax, cols, dtype):
    inf, nan = math.inf, math.nan
    x = torch.zeros(11, cols, dtype=dtype, device=softmax.device)
    for row, (at, value) in enumerate([(0, -inf), (cols - 1, -inf), (0, inf), (cols - 1, inf), (cols // 2, nan), (0, nan)]):
        x[row, at] = value
    x[6] = -inf
    x[7, :-1] = -inf  # a mask that leaves one
    x[8, 1:] = -inf
    x[9] = nan
    x[10, 0], x[10, 1] = inf, -inf
    want = x.double().softmax(1)
    for version in softmax.versions:
        y = softmax(x, version=version)
        torch.testing.assert_close(y.double(), want, rtol=2.0**-8 if dtype == torch.bfloat16 else 2.0**-10, atol=2.0**-25,
                                   equal_nan=True)
        assert (y[7, -1], y[8, 0]) == (1, 1) and (y[7, :-1] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", COLS)
def test_the_largest_numbers_overflow_nowhere(softmax, cols, dtype):
    largest = torch.finfo(dtype).max
    x = torch.full((4, cols), -largest, dtype=dtype, device=softmax.device)
    x[1, 1] = largest
    x[2] = largest
    x[3, cols - 1] = -math.inf
    for version in softmax.versions:
        y = softmax(x, version=version)
        torch.testing.assert_close(y.double(), x.double().softmax(1), rtol=2.0**-7, atol=0)
        assert y[1, 1] == 1 and y[1].sum() == 1


def test_opcheck_of_the_gradient(softmax):
    for dtype in DTYPES:
        grad, y = (torch.randn(5, 7, dtype=dtype, device=softmax.device).requires_grad_() for _ in range(2))
        torch.library.opcheck(softmax.ops.backward.default, (grad, y, softmax.latest))
        into = grad.detach(), y.detach(), torch.empty_like(y)
        torch.library.opcheck(softmax.ops.backward_out.default, (*into, softmax.latest))


def test_the_gradient_s_gradient_is_torch_s(softmax):
    x = torch.randn(6, 40, dtype=torch.float64, device=softmax.device, requires_grad=True)
    weight, again = torch.randn(2, 6, 40, dtype=torch.float64, device=softmax.device).unbind()
    seconds = []
    for function in (softmax, lambda x: x.softmax(1)):
        first, = torch.autograd.grad((function(x) * weight).sum(), x, create_graph=True)
        seconds.append(torch.autograd.grad((first * again.t().contiguous().t()).sum(), x)[0])
    torch.testing.assert_close(*seconds, rtol=1e-12, atol=1e-14)


def test_one_graph_holds_the_gradient_too(softmax):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: (softmax(x) * w).sum(), fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in ((4, 8), (5, 3), (1, 1)):
        x, w = (torch.randn(shape, dtype=torch.float64, device=softmax.device, requires_grad=True) for _ in range(2))
        got, want = (torch.autograd.grad(f(x, w), (x, w)) for f in (compiled, lambda x, w: (x.softmax(1) * w).sum()))
        torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)


def test_the_rivals_of_the_gradient_give_the_same(softmax):
    grad, x = torch.randn(2, 70, 300, dtype=torch.float64, device=softmax.device).unbind()
    y = x.softmax(1)
    want = softmax.ops.backward(grad, y, softmax.latest)
    assert len(softmax.rivals.backward()) >= 2
    for rival in softmax.rivals.backward().values():
        torch.testing.assert_close(rival(grad, y), want, rtol=1e-12, atol=1e-12)


def test_the_gradient_refuses_what_does_not_fit_by_name(softmax):
    y = torch.rand(4, 5, device=softmax.device)
    backward, backward_out = softmax.ops.backward, softmax.ops.backward_out
    for grad, says in ((y.t().contiguous(), r"`grad` has shape \[5, 4\] and `y` \[4, 5\]"), (y.double(), "`grad` is float64"),
                       (y.t().contiguous().t(), "softmax backward: `grad` is not contiguous")):
        with pytest.raises(RuntimeError, match=says):
            backward(grad, y, softmax.latest)
    with pytest.raises(RuntimeError, match="softmax backward: `y` is not contiguous"):
        backward(y, torch.rand(5, 4, device=softmax.device).t(), softmax.latest)
    memory = torch.rand(60, device=softmax.device)
    for grad, y, out, says in ((0, 20, 10, "`grad_x` shares memory with `y`"),
                               (10, 40, 20, "`grad_x` shares memory with `grad`")):
        grad, y, out = (memory[at:at + 20].view(4, 5) for at in (grad, y, out))
        with pytest.raises(RuntimeError, match=says):
            backward_out(grad, y, out, softmax.latest)


# ---- what the versions are for ----

def traced(version, shape, mode="forward", dtype=torch.float32):
    return labkit.trace("softmax", version, mode, size=shape, dtype=dtype, show=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_requests_and_shared_memory_are_as_the_file_says(dtype):
    size = torch.finfo(dtype).bits // 8
    once = 3 * 2048 * size // 32  # sectors of an array
    passes = {"forward": (3, 2, 1, 1, 1, 1), "backward": (4, 4, 2, 2, 2, 2)}
    for mode, times in passes.items():
        for version, read in enumerate(times, 1):
            found = traced(version, (3, 2048), mode, dtype)
            width = 16 if version >= 4 else size  # bytes of a lane
            assert (found.total("reads").sectors, found.total("writes").sectors) == (read * once, once), found.title
            assert found.total("reads").requests == read * 3 * 2048 * size // (32 * width), found.title
    assert [traced(version, (8, 256), dtype=dtype).total("reads", True).wavefronts > 0 for version in range(1, 7)] == [
        True, True, True, True, False, False]  # lanes of a warp need none


@pytest.mark.skipif(machine.find_nvcc() is None, reason="nvcc is not installed")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_there_are_as_many_kernels_as_meant_and_those_of_a_block_leave_registers_for_all_its_threads(arch):
    kernels = compile_cubin("softmax", arch=arch, without=["-lineinfo"]).kernels
    assert len(kernels) == 180
    assert max(kernel.registers for kernel in kernels if "Block" in kernel.name) <= 128  # of 512 threads


ONLINE = "sum = sum * exp(before - most) + exp(value - most);"


@pytest.mark.parametrize("version, old, new, says", [
    (1, "most = Block::all<Max>(most);", "", "elements are wrong"),
    (1, "grad[c]) * to_compute(y[c]);", "grad[c]);", "backward.*elements are wrong"),
    (2, ONLINE, "sum += exp(value - most);", "elements are wrong"),
    (2, "sum * exp(own - most)", "sum", "elements are wrong"),
    (3, "cols <= N * THREADS", "cols <= N * THREADS + 1", "not written"),
    (4, "if (!in_vectors(a, cols))", "if (cols % Vec<T>::SIZE != 0)", "elements are wrong|aligned"),
    (5, "divide_up(rows, threads.y)", "rows < threads.y ? 1 : rows / threads.y", "not written"),
    (5, "divide_up(cols, EACH<T> * LANES)", "(cols / (EACH<T> * LANES))", "not written"),
    (6, "x * 1.44269504f", "x * 1.4427f", "elements are wrong"),
    (6, "return value * divisor;", "return value / divisor;", "elements are wrong"),
])
def test_check_finds_wrong_kernels(version, old, new, says):
    with pytest.raises(CheckFailed, match=f"softmax v{version} .*({says})"):
        labkit.check(labkit.mutant("softmax", version, old, new))
