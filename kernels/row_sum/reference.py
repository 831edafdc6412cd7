"""What the row_sum kernels must compute, and the cases that `labkit.check` runs."""

import torch

# The operator's modes: the names of their inputs and outputs, and what the outputs must be.
MODES = {"forward": (("x",), ("y",), lambda x: (x.sum(1),))}

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# A warp adds up 32 partial sums, a block 256, and a thread every 256th element: rows just shorter than, as long as and
# just longer than each and than two rounds of the block, a long odd one, empty ones, and x off the 16-byte grid.
CASES = [
    *({"shape": (3, n)} for n in (0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513)),
    *({"shape": shape} for shape in ((0, 0), (0, 7), (1, 1), (257, 5), (2, 4099))),
    {"shape": (3, 256), "layout": "offset"},
    {"shape": (4, 513), "layout": "offset"},
    {"shape": (3, 256), "layout": "last input offset"},
    {"shape": (3, 256), "layout": "outputs offset"},
]

# How often the function can be differentiated, by its options.
DIFFERENTIABLE = [({}, 2)]

# Inputs are normal with this standard deviation, clamped to +-LARGEST.
SPREAD, LARGEST = 1.0, 2.0


def tolerance(dtype, version, mode):
    """(ulps, absolute): an output may be off by ulps * ulp(reference) + absolute.

    Where no term goes through more than n additions, each with a relative error of at most u, a sum is off by at most
    gamma(n) = n u / (1 - n u) times the sum of the terms' magnitudes, in whatever order it is formed (Higham, "Accuracy
    and Stability of Numerical Algorithms", section 4.2). Here a thread adds ceil(cols / 256) terms and the tree over
    the 256 threads is 8 deep; the magnitudes sum to cols * LARGEST at most, and the longest row gives the bound for
    all. u is 2^-24, and 2^-53 for float64. The reference is such a sum too, of float64 and in an order that torch
    chooses: n < cols.

    A 16-bit result s' is then rounded, by at most 2^-8 |s'|, which is 2^-8 of the bound above and 2^-8 of the exact
    sum; the latter is less than its ulp.
    """
    cols = max(case["shape"][1] for case in CASES)
    unit = 2.0**-53 if dtype == torch.float64 else 2.0**-24
    bound = (gamma(-(-cols // 256) + 8, unit) + gamma(cols, 2.0**-53)) * cols * LARGEST
    if dtype in (torch.float16, torch.bfloat16):
        return 1.0, (1 + 2.0**-8) * bound
    return 0.0, bound


def gamma(n, unit):
    """How much n rounded operations in a row are off, relatively, at most."""
    return n * unit / (1 - n * unit)
