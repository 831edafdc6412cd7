"""What the exercise has to compute."""

import torch

MODES = {"backward": (("grad", "y"), ("grad_x",), lambda grad, y: (grad - y.exp() * grad.sum(1, keepdim=True),))}
DTYPES = (torch.bfloat16, torch.float32)
CASES = [{"shape": (2, 2050)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 1.0, 2.0


def given(mode, inputs):
    """All gradients are positive, so that their sum is large, and the first element of a row has most of the probability."""
    grad, y = inputs
    y[:, 0] = 12
    return [grad.abs(), y.double().log_softmax(1).to(y.dtype)]


def tolerance(dtype, version, mode, shape):
    """(ulps, absolute), for a matrix of this shape.

    u is 2^-24. A lane adds every 32nd gradient and the tree is 5 deep: no one goes through more than n additions, and the sum,
    of 2 cols at most, is off by gamma(n) of it. exp is at most 1 and within 2 ulp, 4u; product and difference round: 6u of 2
    cols + 2 in all. (16 bits round a probability up to 1 + 2^-8.) Rounding to 16 bits adds half an ulp of a number that is off
    by as much.
    """
    cols = shape[1]
    bound = (1 + 2.0**-7) * (gamma(-(-cols // 32) + 5, 2.0**-24) + 6 * 2.0**-24) * (2 * cols + 2)
    return (0.5 if dtype == torch.bfloat16 else 0.0), bound


def gamma(n, unit):
    """How much n rounded operations in a row are off, relatively, at most."""
    return n * unit / (1 - n * unit)
