"""What the exercise has to compute."""

import torch

MODES = {"forward": (("x",), ("y",), lambda x: ((x**2).mean(1).sqrt(),))}
DTYPES = (torch.float16, torch.bfloat16)
CASES = [{"shape": (2, 4099)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 300.0, 1000.0  # most squares are too large for float16


def tolerance(dtype, version, mode, shape):
    """(ulps, absolute), for a matrix of this shape.

    A lane adds every 32nd square, and the tree over the lanes is 5 deep: no square goes through more than n additions. All are
    positive, so the sum of such rounded squares is off by at most gamma(n + 1) of itself, in float32. The quotient rounds once,
    the root halves all that and rounds once. A relative error of r is r / u ulps at most, u being the type's unit roundoff, and
    the store adds half an ulp. A sum of 16 bits would round each addition by u.
    """
    additions = -(-shape[1] // 32) + 5
    relative = gamma(additions + 2, 2.0**-24) / 2 + 2.0**-24
    return 0.5 + relative / {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype], 0.0


def gamma(n, unit):
    """How much n rounded operations in a row are off, relatively, at most."""
    return n * unit / (1 - n * unit)
