"""What the exercise has to compute.

The gradient's reference goes back from y to x and differentiates there, by autograd, so that it owes nothing to a formula.
"""

import torch


def gradient(grad, y):
    """grad times the derivative of tanh at the x that has tanh(x) = y."""
    with torch.enable_grad():
        x = torch.atanh(y).requires_grad_()
        return torch.autograd.grad(torch.tanh(x), x, grad)[0]


MODES = {
    "forward": (("x",), ("y",), lambda x: (torch.tanh(x),)),
    "backward_saved": (("grad", "y"), ("grad_x",), lambda grad, y: (gradient(grad, y),)),
}
DTYPES = (torch.float32,)
CASES = [{"shape": (257,)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 0.5, 0.984375  # as x and as y, which stays below 1


def tolerance(dtype, version, mode):
    """(ulps, absolute). forward: CUDA's tanhf is within 2 ulp. backward: the square and the difference are at most 1 and
    rounded, and grad is at most 2, as is the product, which is rounded too: 2 (1 + 1) 2^-24 and 2 * 2^-24, and less than as
    much again for products of such errors.
    """
    return (2.0, 0.0) if mode == "forward" else (0.0, 7 * 2.0**-24)
