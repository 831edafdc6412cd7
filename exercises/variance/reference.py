"""What the exercise has to compute."""

import torch

MODES = {"forward": (("x",), ("y",), lambda x: (x.var(1, correction=0),))}
DTYPES = (torch.float32,)
CASES = [{"shape": (2, 1000)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 1.0, 4.0
MEAN = 1000.0


def given(mode, inputs):
    """The mean is large beside the spread: a square is a million, and the variance about 1."""
    return [x + MEAN for x in inputs]


def tolerance(dtype, version, mode, shape):
    """(ulps, absolute), for a matrix of this shape.

    u is 2^-24. A lane adds every 32nd element and the tree is 5 deep, so no element goes through more than n additions, and the
    mean, divided, is off by d = gamma(n + 1) (MEAN + LARGEST) at most. The average square of the distances from such a mean is
    off by d^2. Each distance is rounded, each square and each addition, and the quotient: a relative error of gamma(n + 4) of
    the variance, which is LARGEST^2 at most. The form that subtracts two squares is off by u MEAN^2 alone, a thousand times as
    much.
    """
    additions = -(-shape[1] // 32) + 5
    of_mean = gamma(additions + 1, 2.0**-24) * (MEAN + LARGEST)
    return 0.0, of_mean**2 + gamma(additions + 4, 2.0**-24) * (LARGEST**2 + of_mean**2)


def gamma(n, unit):
    """How much n rounded operations in a row are off, relatively, at most."""
    return n * unit / (1 - n * unit)
