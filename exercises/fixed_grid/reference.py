"""What the exercise has to compute."""

import torch

MODES = {"forward": (("x",), ("y",), lambda x: (x * (x + 3).clamp(0, 6) / 6,))}
DTYPES = (torch.float32,)
CASES = [{"shape": (1000,)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 2.5, 8.0


def tolerance(dtype, version, mode):
    """(ulps, 0). x is exact, so that the sum is off by half an ulp of itself, 2^-24 relatively; the product, and the quotient
    or a product with a rounded 1/6, add at most three times as much. 2^-24 of a number is less than its ulp.
    """
    return 4.0, 0.0
