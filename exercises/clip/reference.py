"""What the exercise has to compute."""

import torch

MODES = {"forward": (("x",), ("y",), lambda x: (x / x.norm(dim=1, keepdim=True).clamp(min=1),))}
DTYPES = (torch.bfloat16, torch.float32)
CASES = [{"shape": (4, 100)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 1.0, 4.0


def given(mode, inputs):
    """Every third row is 0, and the one after it is shorter than 1."""
    (x,) = inputs
    x[0::3] = 0
    x[1::3] /= 64
    return [x]


def tolerance(dtype, version, mode, shape):
    """(ulps, absolute), for a matrix of this shape.

    u is 2^-24. A lane adds every 32nd square and the tree is 5 deep: the sum of the rounded squares, all positive, is off by
    gamma(n + 1) of itself. The root takes half and rounds, and so do quotient and product. A relative error of r is r / u ulps
    at most of float32, and r / u' of a 16-bit type whose unit roundoff is u', where the store adds half an ulp. Near a length
    of 1 both answers are within that of each other.
    """
    additions = -(-shape[1] // 32) + 5
    relative = gamma(additions + 1, 2.0**-24) / 2 + 3 * 2.0**-24
    return (relative / 2.0**-24 if dtype == torch.float32 else 0.5 + relative / 2.0**-8), 0.0


def gamma(n, unit):
    """How much n rounded operations in a row are off, relatively, at most."""
    return n * unit / (1 - n * unit)
