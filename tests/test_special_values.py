"""Infinities, NaN, the largest and the least numbers, both zeros: what each operator makes of them, in every version and type.

The same on both backends. Chapter 7 states the policy, under "Infinities, NaN, and numbers at the ends of a type".
"""

import math

import pytest
import torch

import labkit

INF, NAN = math.inf, math.nan
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SUMMING = ("row_sum", "fold", "total")


def ends(dtype):
    """The largest number of a type, and the least that is not 0."""
    return torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def each(*names, dtypes=DTYPES):
    """(operator, version, dtype) of those operators that take the type."""
    for name in names:
        op = labkit.load(name)
        yield from ((op, version, dtype) for version in op.versions for dtype in dtypes if dtype in op.reference.DTYPES)


def tensor(op, rows, dtype, gradient=False):
    return torch.tensor(rows, dtype=dtype, device=op.device, requires_grad=gradient)


def same(got, want):
    """Equal within two roundings, NaN to NaN, and a number that fits no more to infinity."""
    want = torch.as_tensor(want, dtype=torch.float64).to(got.dtype).to(got.device)
    torch.testing.assert_close(got.detach(), want.expand(got.shape), rtol=2 * torch.finfo(got.dtype).eps,
                               atol=ends(got.dtype)[1], equal_nan=True)


def sums(dtype):
    """(two numbers, their sum): what is beyond the type is infinite, denormals count, and 0 is of either sign."""
    most, least = ends(dtype)
    return [((INF, 1), INF), ((-INF, 1), -INF), ((INF, -INF), NAN), ((NAN, 1), NAN), ((NAN, INF), NAN), ((most, most), INF),
            ((-most, -most), -INF), ((most, -most), 0), ((least, least), 2 * least), ((least, -least), 0), ((-0.0, -0.0), 0)]


def test_what_only_moves_numbers_keeps_every_bit_of_them_and_of_gradients():
    for op, version, dtype in each("copy", "transpose"):
        most, least = ends(dtype)
        row = tensor(op, [[INF, -INF, NAN, most, -most, least, -least, 0.0, -0.0]], dtype)
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[row.element_size()]
        x = row.clone().requires_grad_()
        y = op(x, version=version)
        grad, = torch.autograd.grad(y, x, row.reshape(y.shape))
        for got in (y, grad):
            assert torch.equal(got.detach().flatten().view(bits), row.flatten().view(bits))


@pytest.mark.parametrize("name", SUMMING)
def test_sums_follow_the_arithmetic_of_the_type(name):
    for op, version, dtype in each(name):
        for row, total in sums(dtype):
            returned = op(tensor(op, [row], dtype), version=version)
            for y in (returned,) if torch.is_tensor(returned) else returned:
                same(y, total)


def test_a_mean_of_neighbours_follows_the_arithmetic_of_the_type_that_it_is_summed_in():
    for op, version, dtype in each("stencil"):
        for row, total in sums(dtype):
            # Sums of float16 are formed in float32, where none of these is too large.
            fits = dtype == torch.float16 and math.isfinite(sum(row))
            same(op(tensor(op, [row], dtype), version=version), (sum(row) if fits else total) / 25)
        far = torch.zeros(1, 9, dtype=dtype, device=op.device)
        far[0, 0], far[0, 8] = NAN, INF
        assert op(far, version=version)[0, 3:6].eq(0).all()  # they reach two columns and no further


def test_the_gradients_of_sums_do_not_look_at_x_and_pass_on_what_comes():
    for op, version, dtype in each(*SUMMING, "stencil"):
        most, least = ends(dtype)
        for incoming in (INF, -INF, NAN, most, least):
            x = tensor(op, [[NAN, INF]], dtype, gradient=True)
            y = op(x, version=version)
            y = y if torch.is_tensor(y) else y[0]
            grad, = torch.autograd.grad(y[..., :1], x, torch.full_like(y[..., :1], incoming))
            same(grad, incoming / 25 if op.name == "stencil" else incoming)


SOFTMAX = [  # of a row: the result, and the gradient where 1 and 2 flow back
    ((INF, 1), (NAN, NAN), (NAN, NAN)), ((INF, -INF), (NAN, NAN), (NAN, NAN)), ((NAN, 1), (NAN, NAN), (NAN, NAN)),
    ((-INF, -INF), (NAN, NAN), (NAN, NAN)), ((-INF, 1), (0, 1), (0, 0)), (("most", "-most"), (1, 0), (0, 0)),
    (("most", "most"), (0.5, 0.5), (-0.25, 0.25)), (("least", "-least"), (0.5, 0.5), (-0.25, 0.25)),
    ((0.0, -0.0), (0.5, 0.5), (-0.25, 0.25))]


def numbers(row, dtype):
    most, least = ends(dtype)
    return [{"most": most, "-most": -most, "least": least, "-least": -least}.get(x, x) for x in row]


@pytest.mark.parametrize("row, result, gradient", SOFTMAX)
def test_softmax_is_torch_s_at_the_ends_and_so_is_its_gradient(row, result, gradient):
    for op, version, dtype in each("softmax"):
        x, back = tensor(op, [numbers(row, dtype)], dtype, gradient=True), tensor(op, [[1, 2]], dtype)
        y = op(x, version=version)
        same(y, result)
        same(torch.autograd.grad(y, x, back)[0], gradient)
        same(x.double().softmax(1).to(dtype), result)  # the table itself


def test_a_softmax_whose_gradient_is_not_finite_spreads_that_over_the_row_alone():
    for op, version, dtype in each("softmax"):
        for incoming in (INF, NAN):
            x = torch.zeros(2, 2, dtype=dtype, device=op.device, requires_grad=True)
            grad, = torch.autograd.grad(op(x, version=version), x, tensor(op, [[incoming, 1], [1, 2]], dtype))
            assert not grad[0].isfinite().any()
            same(grad[1], (-0.25, 0.25))


GELU = [  # x, the limit, and the derivative's; then both where x/2 (1 + tanh z) multiplies 0 and infinity: versions 1 to 6
    (INF, INF, 1, INF, NAN), (-INF, 0, 0, NAN, NAN), (NAN, NAN, NAN, NAN, NAN), ("most", "most", 1, "most", NAN),
    ("-most", 0, 0, 0, NAN), (0.0, 0, 0.5, 0, 0.5), (-0.0, 0, 0.5, 0, 0.5)]


@pytest.mark.parametrize("x, limit, slope, tanh_form, tanh_slope", GELU)
def test_gelu_has_its_limits_from_version_7_on_and_says_nan_before(x, limit, slope, tanh_form, tanh_slope):
    for op, version, dtype in each("gelu", "geometry"):
        limits = op.name == "geometry" or version == 7
        # float16's largest number cubed is none of float32's largest: nothing is infinite there.
        slopes = slope if limits or dtype == torch.float16 and x in ("most", "-most") else tanh_slope
        at = tensor(op, numbers([x], dtype), dtype, gradient=True)
        for options in ({"save": "input"}, {"save": "derivative"}) if op.name == "gelu" else ({},):
            y = op(at, version=version, **options)
            same(y, numbers([limit if limits else tanh_form], dtype))
            same(torch.autograd.grad(y, at, torch.ones_like(y))[0], slopes)


def test_gelu_keeps_the_sign_of_0_and_halves_denormals():
    for op, version, dtype in each("gelu", "geometry"):
        _, least = ends(dtype)
        y = op(tensor(op, [0.0, -0.0, 64 * least, -64 * least], dtype), version=version)
        same(y, [0.0, -0.0, 32 * least, -32 * least])
        assert y[:2].signbit().tolist() == [False, True]


def test_a_gradient_that_is_not_finite_reaches_its_element_alone_through_gelu():
    for op, version, dtype in each("gelu", "geometry"):
        for incoming in (INF, NAN):
            x = tensor(op, [1.0, 1.0], dtype, gradient=True)
            grad, = torch.autograd.grad(op(x, version=version), x, tensor(op, [incoming, 0.0], dtype))
            same(grad, [incoming, 0.0])


ONE = 1 / math.sqrt(1 + 1e-5)  # what 1 and 3 are normalised to, but for the sign
ADD_NORM = [  # a row and its y for weight 2 and bias 1: NaN wherever h or its mean is not finite
    ((INF, 1), NAN), ((-INF, 1), NAN), ((NAN, 1), NAN), ((INF, -INF), NAN), (("least", "-least"), 1), ((-0.0, 0.0), 1)]


@pytest.mark.parametrize("row, expected", ADD_NORM)
def test_add_norm_makes_nan_of_a_row_that_is_not_finite_and_leaves_the_others(row, expected):
    for op, version, dtype in each("add_norm"):
        x = tensor(op, [numbers(row, dtype), [1, 3]], dtype, gradient=True)
        weight, bias = (tensor(op, [k, k], dtype, gradient=True) for k in (2, 1))
        y, h = op(x, torch.zeros_like(x), weight, bias, version=version)
        same(y[0], expected)
        same(y[1], (1 - 2 * ONE, 1 + 2 * ONE))
        same(h, x.detach().double())
        grad, of_weight, of_bias = torch.autograd.grad(y, (x, weight, bias), torch.ones_like(y))
        assert grad[1].isfinite().all() and grad[0].isnan().all() == math.isnan(expected)
        assert of_weight.isnan().all() == math.isnan(expected)  # a sum over all rows
        same(of_bias, 2)


def test_add_norm_where_a_sum_or_a_square_does_not_fit_the_type_that_is_computed_in():
    for op, version, dtype in each("add_norm"):
        most, _ = ends(dtype)
        weight, bias = (tensor(op, [k, k], dtype) for k in (2, 1))
        rows = tensor(op, [[most, -most], [most, most]], dtype)
        zero = torch.zeros_like(rows)
        y, _ = op(rows, zero, weight, bias, version=version)
        if dtype == torch.float16:  # all of it fits float32
            same(y, [[3, -1], [1, 1]])
        else:  # an infinite variance makes 1/deviation 0; version 4 subtracts two means first, and that is infinite
            same(y, [[NAN] * 2 if version == 4 else [1, 1], [NAN] * 2])
        y, h = op(rows, rows, weight, bias, version=version)
        assert h.isinf().all() and y.isnan().all()
