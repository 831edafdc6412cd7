"""What the exercise has to compute."""

import torch

MODES = {"forward": (("x",), ("y",), lambda x: (x * x * x,))}
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CASES = [{"shape": (300,)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 1.0, 4.0


def tolerance(dtype, version, mode):
    """(ulps, 0). Two products are rounded, by u of themselves each, and u of a number is less than its ulp. A 16-bit result
    is the rounding of such a number of float32: half an ulp, and 2^-23 / 2^-11 of one at most, less than a thousandth.
    """
    return (0.501 if dtype in (torch.float16, torch.bfloat16) else 2.0), 0.0
