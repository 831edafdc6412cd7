"""What the exercise has to compute."""

import torch


def swiglu(x):
    """The first half of each row through SiLU, times the second half."""
    a, b = x.chunk(2, dim=1)
    return a * torch.sigmoid(a) * b


MODES = {"forward": (("x",), ("y",), lambda x: (swiglu(x),))}
DTYPES = (torch.float16, torch.bfloat16)
CASES = [{"shape": (2, 1024)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 2.0, 8.0


def tolerance(dtype, version, mode):
    """(ulps, absolute).

    u is 2^-24. exp is within 2 ulp, 4u relatively, of an argument that is exact; sum, quotient and two products round by u
    each: 8u. A relative error of r is r / u' ulps at most of a type whose unit roundoff is u', and the store adds half an ulp.
    Anything that is rounded to 16 bits on the way adds up to another half.
    """
    return 0.5 + 8 * 2.0**-24 / {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype], 0.0
