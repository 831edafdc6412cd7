"""What the exercise has to compute. The derivative is autograd's, so that it owes nothing to a formula."""

import torch


def silu(x):
    """x sigmoid(x) of a float64 tensor."""
    return x * torch.sigmoid(x)


def derivative(x):
    """silu'(x) of a float64 tensor."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(silu(x).sum(), x)[0]


MODES = {"forward_derivative": (("x",), ("y", "derivative"), lambda x: (silu(x), derivative(x)))}
DTYPES = (torch.bfloat16, torch.float32)
CASES = [{"shape": (300,)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 2.5, 8.0


def tolerance(dtype, version, mode):
    """{output: (ulps, absolute)}. u = 2^-24. expf is within 2 ulp, 4u relatively; the sum and the quotient add u each, and
    the product another: s is off by 6u and y by 7u of itself, less than 7 ulp. 1 - s is off by 6u of s, at most, and by u of
    itself: 7u. With |x| <= 8 the product is off by 8 (7 + 1) u, the parenthesis, at most 9, by 9u more, and times s, at most
    1, by 6 + 1 of its 9: (64 + 9 + 63) u. Rounding to 16 bits adds half an ulp of a number that is off by that much, 2^-8 of
    it more.
    """
    u, small = 2.0**-24, dtype == torch.bfloat16
    bound = (64 + 9 + 63) * u
    return {"y": (0.501 if small else 7.0, 0.0), "derivative": (0.5 if small else 0.0, (1 + 2.0**-8) * bound)}
