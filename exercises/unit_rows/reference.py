"""What the exercise has to compute. The gradient is autograd's, so that it owes nothing to a formula."""

import torch


def gradient(grad, x):
    """The gradient of x where each row of y is x divided by its length, from that of y."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(x / x.norm(dim=1, keepdim=True), x, grad)[0]


MODES = {"backward": (("grad", "x"), ("grad_x",), lambda grad, x: (gradient(grad, x),))}
DTYPES = (torch.bfloat16, torch.float32)
CASES = [{"shape": (2, 1000)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 1.0, 3.0


def given(mode, inputs):
    """No element of x is nearer to 0 than 1/2, so that no row is short."""
    grad, x = inputs
    return [grad, x + torch.where(x < 0, -0.5, 0.5).to(x.dtype)]


def tolerance(dtype, version, mode, shape):
    """(ulps, absolute), for a matrix of this shape.

    u is 2^-24. A lane adds every 32nd product and the tree is 5 deep, so none goes through more than n additions: s is off by
    gamma(n + 1) of itself, and p by gamma(n + 1) |grad| |x| (Cauchy). So x p / s is off by 2 gamma(n + 1) + 2u of |grad|, and
    the difference by 1u of 2 |grad|. Root and quotient are off by half of gamma(n + 1) and 2u of 2 |grad| / |x|. As |grad| is
    at most 2 sqrt(cols), and |x| at least half of sqrt(cols), all is at most (3 gamma(n + 1) + 8u) * 4. A 16-bit store adds
    half an ulp of a number that is off by as much.
    """
    additions = -(-shape[1] // 32) + 5
    return (0.5 if dtype == torch.bfloat16 else 0.0), (1 + 2.0**-8) * 4 * (3 * gamma(additions + 1, 2.0**-24) + 8 * 2.0**-24)


def gamma(n, unit):
    """How much n rounded operations in a row are off, relatively, at most."""
    return n * unit / (1 - n * unit)
