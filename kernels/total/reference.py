"""What the total kernels must compute, and the cases that `labkit.check` runs."""

import torch

# The operator's modes: the names of their inputs and outputs, and what the outputs must be.
MODES = {"forward": (("x",), ("sums", "total"), lambda x: (x.sum(1), x.sum().view(1)))}

DTYPES = (torch.float32, torch.float64)

# A block adds up a row by 256 threads, and one block as many rows: rows and columns around a warp, a block and two, none at
# all, and arrays off the 16-byte grid.
CASES = [
    *({"shape": (3, n)} for n in (0, 1, 2, 31, 32, 33, 255, 256, 257, 513)),
    *({"shape": (n, 3)} for n in (0, 1, 2, 31, 32, 33, 255, 256, 257, 513)),
    *({"shape": shape} for shape in ((0, 0), (1, 1), (257, 255))),
    {"shape": (3, 256), "layout": "offset"},
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
    and Stability of Numerical Algorithms", section 4.2). A thread adds ceil(cols / 256) terms, a block's tree is 8 deep,
    and the rows' sums go through as much again; the magnitudes sum to rows * cols * LARGEST at most, and the largest case
    gives the bound for all. u is 2^-24, and 2^-53 for float64. The reference is such a sum too, of float64 and in an order
    that torch chooses.
    """
    rows, cols = (max(case["shape"][d] for case in CASES) for d in (0, 1))
    elements = max(case["shape"][0] * case["shape"][1] for case in CASES)
    unit = 2.0**-53 if dtype == torch.float64 else 2.0**-24
    deep = -(-cols // 256) - (-rows // 256) + 16
    return 0.0, (gamma(deep, unit) + gamma(elements, 2.0**-53)) * elements * LARGEST


def gamma(n, unit):
    """How much n rounded operations in a row are off, relatively, at most."""
    return n * unit / (1 - n * unit)
