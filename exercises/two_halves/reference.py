"""What the exercise has to compute."""

import torch


def two_halves(x):
    """x rounded to bfloat16, and what is left of it, rounded likewise."""
    high = x.bfloat16().double()
    return high, (x - high).bfloat16().double()


MODES = {"forward_derivative": (("x",), ("high", "low"), two_halves)}
DTYPES = (torch.float32,)
CASES = [{"shape": (300,)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 1.0, 100.0


def tolerance(dtype, version, mode):
    """(ulps, absolute). Both are rounded once, and what is rounded is exact: x, and the difference of two near numbers."""
    return 0.0, 0.0
