"""The GeLU operator: every 16-bit input, autograd, layouts, and what it refuses.

Runs on the backend of the machine: on the host backend without a GPU, on CUDA with one. What exists on a GPU alone
is in test_gelu_gpu.py.
"""

import math

import mpmath
import pytest
import torch

import labkit
from labkit.listing import source
from labkit.operator import listed_versions, source_path
from labkit.precision import error_in_ulp, every_finite, spacing

HALF_TYPES = (torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def gelu():
    return labkit.load("gelu")


def test_the_reference_matches_arbitrary_precision(gelu):
    def exact(x):
        z = mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)
        return x / 2 * (1 + mpmath.tanh(z))

    points = [-20.0, -9.5, -5.0, -0.7524, -1e-3, 0.0, 1e-300, 0.3, 2.0, 6.0, 30.0]
    x = torch.tensor(points, dtype=torch.float64)
    with mpmath.workdps(400):
        for got, slope, at in zip(gelu.reference.gelu(x), gelu.reference.gelu_derivative(x), points):
            assert math.isclose(got.item(), float(exact(mpmath.mpf(at))), rel_tol=1e-13, abs_tol=0)
            # Autograd's 1 - s has an absolute error, which counts where the derivative is near 0.
            assert math.isclose(slope.item(), float(mpmath.diff(exact, at)), rel_tol=1e-13, abs_tol=1e-14)


@pytest.mark.parametrize("dtype, forward, derivative", [(torch.bfloat16, 0.5, 0.501), (torch.float16, 0.501, 0.6)])
def test_every_16_bit_input_is_rounded_to_about_half_an_ulp(gelu, dtype, forward, derivative):
    x = every_finite(dtype, gelu.device)
    y, slope = gelu.ops.forward_derivative(x, gelu.latest)
    grad_x = gelu.ops.backward(torch.ones_like(x), x, gelu.latest)
    exact, exact_slope = gelu.reference.gelu(x.double()), gelu.reference.gelu_derivative(x.double())
    assert error_in_ulp(gelu(x), exact).max() <= forward and error_in_ulp(y, exact).max() <= forward
    # 1 + x (1 - s) dz/dx cancels at its zero near -0.75; float16 has numbers close enough to see it.
    assert error_in_ulp(grad_x, exact_slope).max() <= derivative and error_in_ulp(slope, exact_slope).max() <= derivative


@pytest.mark.parametrize("low, high, forward, derivative", [
    (0, 6, 4, 4), (-0.5, 0, 4, 8), (-3, -1, 16, 16), (-8, -3, 150, 150)])
def test_float32_keeps_its_digits_also_where_the_tanh_form_loses_them(gelu, low, high, forward, derivative):
    x = torch.linspace(low, high, 400_001, device=gelu.device)
    exact, slope = gelu.reference.gelu(x.double()), gelu.reference.gelu_derivative(x.double())
    assert error_in_ulp(gelu(x), exact).max() <= forward
    assert error_in_ulp(gelu.ops.backward(torch.ones_like(x), x, gelu.latest), slope).max() <= derivative
    if high <= -3:
        assert error_in_ulp(gelu.rivals.native(x), exact).max() > 1e6


def test_a_version_runs_what_it_says(gelu):
    x = torch.tensor([-6.1875], dtype=torch.bfloat16, device=gelu.device)
    for version in gelu.versions:  # 1 + tanh z is 0 there, sigmoid(2z) is not
        assert (gelu(x, version=version) == 0) == (version < 7)
        leaf = x.clone().requires_grad_()
        gelu(leaf, version=version).backward()
        assert (leaf.grad == 0) == (version < 7)
    every = every_finite(torch.float16, gelu.device)
    assert not torch.equal(gelu(every, version=6), gelu(every, version=1))


def test_one_ulp_at_zero_is_the_smallest_denormal():
    zero = torch.zeros(1, dtype=torch.float64)
    assert spacing(zero, torch.float16).item() == 2.0**-24
    assert spacing(zero, torch.bfloat16).item() == 2.0**-133
    assert error_in_ulp(torch.tensor([1e-3], dtype=torch.bfloat16), zero).item() > 1e30


@pytest.mark.parametrize("dtype", [*HALF_TYPES, torch.float32, torch.float64])
def test_infinities_give_the_limits_and_nan_stays(gelu, dtype):
    x = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0], dtype=dtype, device=gelu.device)
    y = gelu(x)
    slope = gelu.ops.backward(torch.ones_like(x), x, gelu.latest)
    assert y[0] == math.inf and y[1] == 0 and y[2].isnan()
    assert y[3] == 0 and not y[3].signbit() and y[4] == 0 and y[4].signbit()
    assert slope[0] == 1 and slope[1] == 0 and slope[2].isnan() and (slope[3:] == 0.5).all()


@pytest.mark.parametrize("dtype", [*HALF_TYPES, torch.float32, torch.float64])
def test_huge_inputs_overflow_nowhere(gelu, dtype):
    largest = torch.finfo(dtype).max
    x = torch.tensor([largest, -largest, largest / 2, -largest / 2], dtype=dtype, device=gelu.device)
    assert gelu(x).tolist() == [largest, 0, largest / 2, 0]
    assert gelu.ops.backward(torch.ones_like(x), x, gelu.latest).tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("save", ["input", "derivative"])
@pytest.mark.parametrize("layout", ["contiguous", "expanded", "strided", "transposed"])
def test_gradients_of_any_layout(gelu, save, layout):
    x = torch.randn(12, 20, dtype=torch.float64, device=gelu.device).requires_grad_()
    grad = {"contiguous": torch.randn(12, 20), "expanded": torch.randn(1, 20).expand(12, 20),
            "strided": torch.randn(24, 40)[::2, ::2], "transposed": torch.randn(20, 12).t()}[layout]
    grad = grad.double().to(gelu.device)
    got, = torch.autograd.grad(gelu(x, save=save), x, grad)
    want, = torch.autograd.grad(gelu.reference.gelu(x), x, grad)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_sum_backward_whose_gradient_is_an_expanded_scalar(gelu):
    x = torch.randn(1000, dtype=torch.float64, device=gelu.device).requires_grad_()
    gelu(x).sum().backward()
    torch.testing.assert_close(x.grad, gelu.reference.gelu_derivative(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("save", ["input", "derivative"])
def test_empty_tensors_have_gradients(gelu, save):
    x = torch.empty(3, 0, 5, device=gelu.device, requires_grad=True)
    y = gelu(x, save=save)
    y.sum().backward()
    assert y.shape == x.grad.shape == (3, 0, 5)


def test_channels_last_and_permuted_inputs_are_not_copied(gelu):
    x = torch.randn(2, 6, 5, 7, device=gelu.device)
    for view in (x.to(memory_format=torch.channels_last), x.permute(3, 1, 0, 2), x.transpose(0, 3)):
        y = gelu(view)
        assert y.stride() == view.stride() == torch.empty_like(view).stride()


def test_derivative_is_not_kept_where_no_gradient_is_wanted(gelu):
    x = torch.randn(64, device=gelu.device)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        gelu(x, save="derivative")
        with torch.no_grad():
            gelu(x.requires_grad_(), save="derivative")
    assert not kept


def test_second_gradient_of_kept_derivative_is_refused(gelu):
    x = torch.randn(4, dtype=torch.float64, device=gelu.device, requires_grad=True)
    with pytest.raises(NotImplementedError, match='save="input"'):
        torch.autograd.grad(gelu(x, save="derivative").sum(), x, create_graph=True)


@pytest.mark.parametrize("dtype", [*HALF_TYPES, torch.float32])
@pytest.mark.parametrize("mode", ["forward", "forward_derivative", "backward", "backward_saved"])
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_opcheck(gelu, mode, dtype, layout):
    names, _, _ = gelu.reference.MODES[mode]
    tensors = [torch.randn(5, 7, dtype=dtype, device=gelu.device).requires_grad_() for _ in names]
    if layout == "transposed":
        tensors = [t.detach().t().requires_grad_() for t in tensors]
    torch.library.opcheck(getattr(gelu.ops, mode).default, (*tensors, gelu.latest))
    outputs = [torch.empty_like(tensors[0].detach()) for _ in gelu.reference.MODES[mode][1]]
    inputs = [t.detach() for t in tensors]
    torch.library.opcheck(getattr(gelu.ops, f"{mode}_out").default, (*inputs, *outputs, gelu.latest))


@pytest.mark.parametrize("save", ["input", "derivative"])
def test_compiles_as_one_graph_with_changing_shapes(gelu, save):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: 2 * gelu(x, save=save), fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in ((4, 8), (5, 3), (1, 1)):
        x = torch.randn(shape, dtype=torch.float64, device=gelu.device, requires_grad=True)
        y = compiled(x)
        y.sum().backward()
        torch.testing.assert_close(y, 2 * gelu.reference.gelu(x), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(x.grad, 2 * gelu.reference.gelu_derivative(x), rtol=1e-12, atol=1e-12)


def test_autocast_leaves_the_dtype(gelu):
    x = torch.randn(8, device=gelu.device)
    with torch.autocast(gelu.device.type, dtype=torch.bfloat16):
        assert gelu(x).dtype == torch.float32
        linear = torch.nn.functional.linear(x, torch.randn(8, 8, device=gelu.device))
        assert gelu(linear).dtype == torch.bfloat16


# ---- what is refused, before anything is launched ----

@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.uint8])
def test_other_dtypes_are_refused_by_name(gelu, dtype):
    x = torch.ones(4, device=gelu.device).to(dtype)
    with pytest.raises(RuntimeError, match=r"gelu: `x` is .*; gelu takes float16.*\.to\(dtype\)"):
        gelu(x)


def test_mismatched_arguments_are_refused_by_name(gelu):
    x = torch.randn(4, 5, device=gelu.device)
    version = gelu.latest
    with pytest.raises(RuntimeError, match=r"`grad` has shape \[5, 4\] and `x` \[4, 5\]"):
        gelu.ops.backward(torch.randn(5, 4, device=gelu.device), x, version)
    with pytest.raises(RuntimeError, match="`grad` is float64 and `x` is float32"):
        gelu.ops.backward(x.double(), x, version)
    with pytest.raises(RuntimeError, match="`y` must be dense, with the strides of `x`"):
        gelu.ops.forward_out(x, torch.empty(5, 4, device=gelu.device).t(), version)
    with pytest.raises(RuntimeError, match="`derivative` has shape"):
        gelu.ops.forward_derivative_out(x, torch.empty_like(x), torch.empty(3, device=gelu.device), version)
    with pytest.raises(ValueError, match="save is 'tanh'"):
        gelu(x, save="tanh")


def test_a_version_that_is_not_there_is_refused(gelu):
    for n in (3, 0):
        with pytest.raises(RuntimeError, match="no such version"):
            gelu(torch.ones(n, device=gelu.device), version=max(gelu.versions) + 1)


def test_outputs_that_share_memory_are_refused(gelu):
    x = torch.randn(10, device=gelu.device)
    y = torch.empty_like(x)
    version = gelu.latest
    with pytest.raises(RuntimeError, match="`y` shares memory with `x`"):
        gelu.ops.forward_out(x[:-1], x[1:], version)
    with pytest.raises(RuntimeError, match="`derivative` shares memory with `y`"):
        gelu.ops.forward_derivative_out(x, y, y, version)
    with pytest.raises(RuntimeError, match="`grad_x` shares memory with `grad`"):
        gelu.ops.backward_out(y[1:], x[1:], y[:-1], version)
    want = gelu(x)
    gelu.ops.forward_out(x, x, version)  # in place is fine
    assert torch.equal(x, want)


def test_sparse_tensors_and_forward_mode_are_refused(gelu):
    x = torch.eye(3, device=gelu.device)
    with pytest.raises(RuntimeError, match=r"`x` is not strided.*x.to_dense\(\)"):
        gelu(x.to_sparse())
    with pytest.raises(NotImplementedError, match="only reverse mode"):
        torch.func.jvp(gelu, (x,), (x,))


def test_second_gradients_are_finite_where_their_factors_overflow(gelu):
    x = torch.tensor([1e30, -1e30, 1e12, 20.0], device=gelu.device, requires_grad=True)
    first, = torch.autograd.grad(gelu(x).sum(), x, create_graph=True)
    second, = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [0, 0, 0, 0]


# ---- the file itself ----

def test_the_header_lists_the_versions_that_the_file_has(gelu):
    text = source_path("gelu").read_text()
    listed = list(listed_versions(text))
    assert listed == list(range(1, len(listed) + 1)) == list(gelu.versions)
    assert [int(line.split("(")[1].split(",")[0]) for line in text.splitlines()
            if line.strip().startswith("VERSION(")] == listed
    for version in listed:
        assert source("gelu", version)


def test_the_chapters_drawing_shows_the_passes_that_are_counted(gelu, capsys):
    x = torch.randn(8, 8, dtype=torch.bfloat16, device=gelu.device)
    counted, = labkit.traffic("traffic", {"composed": gelu.rivals.composed}, x, title="for the drawing")
    drawing = (labkit.REPOSITORY / "book" / "figures" / "traffic.svg").read_text()
    composed, fused = drawing.split("Fused: one kernel")
    assert composed.count('class="write"') == counted["operators forward"]
    assert 2 * (composed.count('class="read"') + composed.count('class="write"')) == counted["bytes forward"]
    assert fused.count('class="read"') == fused.count('class="write"') == 1
