"""add_norm: inputs of several shapes and types. Autograd, what it refuses, bytes, registers, wrong kernels."""

import pytest
import torch
import torch.nn.functional as F

import labkit
from labkit import machine
from labkit.cubin import compile_cubin
from labkit.verdict import CheckFailed

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CLOSE = {"rtol": 1e-11, "atol": 1e-11}


@pytest.fixture(scope="module")
def add_norm():
    return labkit.load("add_norm")


def drawn(op, rows, cols, dtype=torch.float64, gradient=False):
    generator = torch.Generator().manual_seed(rows + cols)
    shapes = (rows, cols), (rows, cols), (cols,), (cols,)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(op.device).requires_grad_(gradient)
            for shape in shapes]


def torchs(x, residual, weight, bias):
    h = x + residual
    return F.layer_norm(h, h.shape[1:], weight, bias, 1e-5), h


def test_the_reference_is_torch_s_layer_norm(add_norm):
    tensors = drawn(add_norm, 7, 33)
    y, h, mean, rstd = add_norm.reference.add_norm(*tensors, dtype=torch.float64)
    torch.testing.assert_close((y, h), torchs(*tensors), **CLOSE)
    grad_y, grad_h = drawn(add_norm, 7, 33)[::-1][2:]
    of_x, of_weight, of_bias = add_norm.reference.gradients(grad_y, grad_h, tensors[2], mean, rstd, h)
    leaves = [t.requires_grad_() for t in tensors]
    want = torch.autograd.grad(torchs(*leaves), leaves, (grad_y, grad_h))
    torch.testing.assert_close((of_x, of_x, of_weight, of_bias), want, **CLOSE)


@pytest.mark.parametrize("rows, cols", [(1, 1), (6, 40), (3, 1544), (1030, 8), (300, 2056)])
@pytest.mark.parametrize("layout", ["contiguous", "expanded", "transposed"])
def test_gradients_are_torch_s_for_gradients_of_any_layout(add_norm, rows, cols, layout):
    tensors = drawn(add_norm, rows, cols, gradient=True)
    for version in (1, add_norm.latest):
        got, want = add_norm(*tensors, version=version), torchs(*tensors)
        grads = [{"contiguous": g, "expanded": g[:1].expand(rows, cols), "transposed": g.t().contiguous().t()}[layout]
                 for g in drawn(add_norm, rows, cols)[:2]]
        torch.testing.assert_close(torch.autograd.grad(got, tensors, grads), torch.autograd.grad(want, tensors, grads),
                                   rtol=1e-10, atol=1e-10)


def test_a_gradient_of_one_output_alone(add_norm):
    tensors = drawn(add_norm, 6, 40, gradient=True)
    for of_one in (0, 1):
        got, want = (torch.autograd.grad(f(*tensors)[of_one].square().sum(), tensors[:2]) for f in (add_norm, torchs))
        torch.testing.assert_close(got, want, **CLOSE)


def test_nothing_is_filled_for_results_that_have_no_gradient(add_norm):
    tensors = drawn(add_norm, 6, 40, gradient=True)
    y, h = add_norm(*tensors)
    with torch.profiler.profile() as seen:
        (y.sum() + h.sum()).backward()
    assert not {event.name for event in seen.events()} & {"aten::zeros", "aten::zeros_like"}


def test_sums_over_many_rows_are_the_same_each_time_and_right(add_norm):
    for rows, cols in ((2500, 8), (530, 2052)):
        x, residual, weight, bias = drawn(add_norm, rows, cols, torch.float32)
        y, h, mean, rstd = add_norm.ops.forward(x, residual, weight, bias, add_norm.latest)
        arguments = x, residual, weight, mean, rstd, h
        first, again = (add_norm.ops.backward(*arguments, add_norm.latest) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, again))
        want = add_norm.reference.gradients(*(t.double() for t in arguments))
        for got, exact in zip(first, want):
            torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-3)


def test_no_rows_and_no_columns(add_norm):
    for rows, cols in ((0, 5), (5, 0), (0, 0)):
        tensors = drawn(add_norm, rows, cols, torch.float32, gradient=True)
        for version in add_norm.versions:
            y, h = add_norm(*tensors, version=version)
            grads = torch.autograd.grad((y, h), tensors, (y.detach(), h.detach()))
            assert y.shape == h.shape == grads[0].shape == (rows, cols)
            assert torch.equal(grads[2], torch.zeros(cols, device=add_norm.device)) and not grads[3].any()
    mean, rstd = add_norm.ops.forward(*drawn(add_norm, 5, 0, torch.float32), add_norm.latest)[2:]
    assert (mean == 0).all() and torch.allclose(rstd, torch.full_like(rstd, 1e-5**-0.5))


def test_y_is_of_the_rounded_sum(add_norm):
    x = torch.tensor([[256.0, 0.0]], dtype=torch.bfloat16, device=add_norm.device)
    residual = torch.tensor([[0.9, 256.0]], dtype=torch.bfloat16, device=add_norm.device)  # 256.9 is 256 in bfloat16
    one, zero = torch.ones(2, dtype=x.dtype, device=x.device), torch.zeros(2, dtype=x.dtype, device=x.device)
    for version in add_norm.versions:
        y, h = add_norm(x, residual, one, zero, version=version)
        assert (h == 256).all() and (y == 0).all()


@pytest.mark.parametrize("cols", [40, 777, 1000, 2047, 4000])
def test_all_threads_of_a_row_have_the_same_mean_to_the_bit(add_norm, cols):
    generator = torch.Generator().manual_seed(cols)
    at = torch.randint(8, (cols,), generator=generator)  # of 8 values a row, so that equal ones are in every warp
    at[:8] = torch.arange(8)
    h = (torch.randn(200, 8, generator=generator) + 3)[:, at].to(add_norm.device)
    one, zero = torch.ones(cols, device=add_norm.device), torch.zeros(cols, device=add_norm.device)
    for version in add_norm.versions:
        y, _ = add_norm(h, torch.zeros_like(h), one, zero, version=version)
        assert torch.equal(y, y[:, at]), version


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinities_stay_in_their_row(add_norm, dtype):
    for cols in (8, 1544, 8200):
        x, residual, weight, bias = drawn(add_norm, 4, cols, dtype)
        clean = add_norm(x, residual, weight, bias)[0]
        x[1, 0], x[2, -1] = torch.nan, torch.inf
        for version in add_norm.versions:
            y, h = add_norm(x, residual, weight, bias, version=version)
            assert y[1].isnan().all() and y[2].isnan().all() and h[1].isnan().sum() == 1 and h[2].isinf().sum() == 1
            torch.testing.assert_close(y[::3], clean[::3], rtol=0.02, atol=0.02)


def test_a_mean_far_from_0_leaves_the_digits_of_the_variance(add_norm):
    x = 4096 + torch.randn(4, 1544, generator=torch.Generator().manual_seed(0)).to(add_norm.device)
    zero, one = torch.zeros_like(x), torch.ones(1544, device=x.device)
    want = F.layer_norm(x.double(), (1544,))
    for version in add_norm.versions:
        y, _ = add_norm(x, zero, one, torch.zeros_like(one), version=version)
        assert (y - want).abs().max() < 2e-3  # a sum of squares less the square of the sum is off by about 1


def test_one_graph_with_changing_shapes(add_norm):
    torch._dynamo.reset()
    compiled = torch.compile(lambda *t: add_norm(*t)[0].square() + add_norm(*t)[1], fullgraph=True, backend="aot_eager",
                             dynamic=True)
    for rows, cols in ((4, 8), (5, 3), (1, 1)):
        tensors = drawn(add_norm, rows, cols, gradient=True)
        y, h = torchs(*tensors)
        got, want = compiled(*tensors), y.square() + h
        torch.testing.assert_close(got, want, **CLOSE)
        torch.testing.assert_close(*(torch.autograd.grad(out.sum(), tensors) for out in (got, want)), **CLOSE)


def test_what_a_user_would_run_instead_gives_the_same(add_norm):
    tensors = drawn(add_norm, 70, 300)
    assert len(add_norm.rivals.forward()) >= 2
    for rival in add_norm.rivals.forward().values():
        torch.testing.assert_close(rival(*tensors), add_norm(*tensors), **CLOSE)
    _, h, mean, rstd = add_norm.ops.forward(*tensors, add_norm.latest)
    arguments = (*drawn(add_norm, 70, 300)[:2], tensors[2], mean, rstd, h)
    for rival in add_norm.rivals.backward().values():
        torch.testing.assert_close(rival(*arguments), add_norm.ops.backward(*arguments, add_norm.latest), **CLOSE)


# ---- what is refused, before anything is launched ----

def test_second_gradients_forward_mode_and_other_versions_are_refused(add_norm):
    tensors = drawn(add_norm, 2, 3, gradient=True)
    with pytest.raises(NotImplementedError, match="no second gradient"):
        torch.autograd.grad(add_norm(*tensors)[0].sum(), tensors, create_graph=True)
    with pytest.raises(NotImplementedError, match="only reverse mode"):
        torch.func.jvp(lambda weight: add_norm(*tensors[:2], weight, tensors[3]), (tensors[2],), (tensors[2],))
    x, _, weight, _ = tensors
    _, h, mean, rstd = add_norm.ops.forward(*tensors, 1)
    for wrong in (0, add_norm.latest + 1):
        with pytest.raises(RuntimeError, match="add_norm: .*no such version"):
            add_norm(*tensors, version=wrong)
        with pytest.raises(RuntimeError, match="add_norm backward: .*no such version"):
            add_norm.ops.backward(x, x, weight, mean, rstd, h, wrong)


@pytest.mark.parametrize("place, change, says", [
    (0, lambda t: t[0], "`x` has shape .*two dimensions"), (0, lambda t: t.long(), "`x` is int64; add_norm takes float16"),
    (0, lambda t: t.t().contiguous().t(), "`x` is not contiguous"),
    (1, lambda t: t[:2], r"`residual` has shape \[2, 5\] and `x` \[3, 5\]"), (1, lambda t: t.half(), "`residual` is float16"),
    (1, lambda t: t.t().contiguous().t(), "`residual` is not contiguous"),
    (2, lambda t: t[:4], r"`weight` must be contiguous, float32 of shape \[5\].* it is float32 of shape \[4\]"),
    (2, lambda t: t.double(), "`weight` must be contiguous, float32 .* it is float64"),
    (3, lambda t: torch.stack([t, t], 1)[:, 0], "`bias` must be contiguous"),
    (3, lambda t: t.to_sparse(), "`bias` is not strided")])
def test_what_does_not_fit_is_refused_by_name(add_norm, place, change, says):
    tensors = drawn(add_norm, 3, 5, torch.float32)
    tensors[place] = change(tensors[place])
    with pytest.raises(RuntimeError, match=f"add_norm: {says}"):
        add_norm(*tensors)


def test_outputs_are_checked(add_norm):
    tensors = drawn(add_norm, 3, 5, torch.bfloat16)
    y, h, mean, rstd = add_norm.ops.forward(*tensors, 1)
    for wrong, says in (((y[:2], h, mean, rstd), r"`y` must be contiguous, bfloat16 of shape \[3, 5\]"),
                        ((y, y, mean, rstd), "`h` shares memory with `y`"),
                        ((y, tensors[1], mean, rstd), "`h` shares memory with `residual`"),
                        ((tensors[0], h, mean, rstd), "`y` shares memory with `x`"),
                        ((y, h, mean.bfloat16(), rstd), r"`mean` must be contiguous, float32 of shape \[3\]"),
                        ((y, h, mean, mean), "`rstd` shares memory with `mean`"),
                        ((y, h, y.view(-1)[:6].view(torch.float32), rstd), "`mean` shares memory with `y`"),
                        ((y, h, mean, tensors[0].view(-1)[8:14].view(torch.float32)), "`rstd` shares memory with `x`")):
        with pytest.raises(RuntimeError, match=f"add_norm: {says}"):
            add_norm.ops.forward_out(*tensors, *wrong, 1)
    inputs = (y, h, tensors[2], mean, rstd, h)
    made = add_norm.ops.backward(*inputs, 1)
    for place, wrong, says in ((0, y, "`grad_x` shares memory with `grad_y`"),
                               (1, tensors[2], "`grad_weight` shares memory with `weight`"),
                               (2, made[1], "`grad_bias` shares memory with `grad_weight`"),
                               (1, mean.view(torch.bfloat16)[1:], "`grad_weight` shares memory with `mean`"),
                               (1, made[1].float(), "`grad_weight` must be contiguous, bfloat16")):
        outputs = [wrong if k == place else t for k, t in enumerate(made)]
        with pytest.raises(RuntimeError, match=f"add_norm backward: {says}"):
            add_norm.ops.backward_out(*inputs, *outputs, 1)
    with pytest.raises(RuntimeError, match=r"add_norm backward: `rstd` must be contiguous, float32 of shape \[3\]"):
        add_norm.ops.backward(*inputs[:4], rstd.bfloat16(), h, 1)


# ---- what the versions are for ----

@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_and_shared_memory_are_as_the_file_says(dtype):
    rows, cols, size = 3, 2048, torch.finfo(dtype).bits // 8
    array = rows * cols * size // 32  # sectors; weight and bias are read once a row
    for version, reads in enumerate((7, 4, 4, 4, 4), 1):
        found = labkit.trace("add_norm", version, size=(rows, cols), dtype=dtype, show=False)
        assert found.total("reads").sectors == reads * array and found.total("writes").sectors == 2 * array + 2 * rows
        width = 16 if version >= 3 else size  # bytes of a lane
        assert found.total("reads").requests == reads * rows * cols * size // (32 * width), found.title
    assert [labkit.trace("add_norm", version, size=(8, 256), dtype=dtype, show=False).total("reads", True).wavefronts > 0
            for version in range(1, 6)] == [True, True, True, True, False]  # a warp needs none
    found = labkit.trace("add_norm", 1, "backward", size=(rows, cols), dtype=dtype, show=False)
    # Not seen: the blocks' sums, in memory that the operator takes for itself. A warp reads mean and rstd of its row.
    assert found.total("writes").sectors == array + 2 * cols * size // 32
    assert found.total("reads").sectors == 4 * array + 2 * rows * (cols // 8 // 32)


@pytest.mark.skipif(machine.find_nvcc() is None, reason="nvcc is not installed")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_there_are_as_many_kernels_as_meant_and_those_of_a_block_leave_registers_for_all_its_threads(arch):
    kernels = compile_cubin("add_norm", arch=arch, without=["-lineinfo"]).kernels
    assert len(kernels) == 100
    assert max(kernel.registers for kernel in kernels if "Block" in kernel.name) <= 128  # of 512 threads


@pytest.mark.parametrize("version, old, new, file, says", [
    (1, "d * d;", "d;", None, ": (y|rstd)"), (1, "* to_compute(a.weight[c]) + ", "+ ", None, ": y"),
    (3, "cols <= N * THREADS", "cols <= N * THREADS + 8", None, "not written"),
    (5, "divide_up(rows, threads.y)", "(rows < 4 ? 1 : rows / threads.y)", None, "not written"),
    (4, "const F n = a.n + b.n, d = a.mean - b.mean", "const F n = a.n + b.n, d = 0", None, ": (y|rstd)"),
    (4, "if (column<Group, WIDTH>(k) >= cols) continue;", "", None, ": (y|mean)"),
    (2, "h[k] = to_compute(first[k]);", "h[k] = to_compute(first[k]) * 1.01f;", "add_norm/add_norm.cu", ": (y|mean)"),
    (2, "- n * sum_n) + to_compute(result", "- sum_n) + to_compute(result", "add_norm/gradient.cuh", "grad_x"),
    (2, "p += ROWS_OF_PARTS", "p += 2 * ROWS_OF_PARTS", "add_norm/gradient.cuh", "grad_weight|grad_bias"),
    (2, "n = (to_compute(h[k]) - mean) * rstd, g = grad", "n = (to_compute(h[k]) + mean) * rstd, g = grad",
     "add_norm/gradient.cuh", "grad_x"),
])
def test_check_finds_wrong_kernels(version, old, new, file, says):
    with pytest.raises(CheckFailed, match=f"add_norm v{version} .*({says})"):
        labkit.check(labkit.mutant("add_norm", version, old, new, file=file))
