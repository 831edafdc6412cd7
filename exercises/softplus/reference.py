"""What the exercise has to compute."""

import torch

# Without the default threshold, above which torch returns x.
MODES = {"forward": (("x",), ("y",), lambda x: (torch.logaddexp(x, torch.zeros_like(x)),))}
DTYPES = (torch.float16, torch.float32)
CASES = [{"shape": (1000,)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 40.0, 120.0  # exp(89) is too large for float32


def tolerance(dtype, version, mode):
    """(ulps, absolute).

    u is 2^-24. exp is within 2 ulp, 4u relatively, of an argument that is exact; log1p passes no more than that on, and is
    within 1 ulp, 2u; the sum rounds by u. A relative error of 7u is 7 ulps of float32 at most. Of float16, whose unit roundoff is
    2^-11, it is 7 * 2^-13, and the store adds half an ulp.
    """
    return (7.0 if dtype == torch.float32 else 0.5 + 7 * 2.0**-13), 0.0
