"""What the stencil kernels must compute, and the cases that `labkit.check` runs."""

import torch
import torch.nn.functional as F


def mean_of_neighbours(x):
    """The mean of each element's 5 x 5 neighbours, those outside of the matrix x being 0."""
    rows, cols = x.shape
    padded = F.pad(x, (2, 2, 2, 2))
    return sum(padded[r:r + rows, c:c + cols] for r in range(5) for c in range(5)) / 25


# The operator's modes: the names of their inputs and outputs, and what the outputs must be.
MODES = {"forward": (("x",), ("y",), lambda x: (mean_of_neighbours(x),))}

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# A block makes a tile of 64 x 32, a thread every eighth row of it or eight below one another, and reads two rows and
# columns beyond each edge: sides around 5, around 8, 32 and 64 and two more than those, single rows and columns, shapes
# that are not square, none at all, and both arrays off the 16-byte grid.
CASES = [
    *({"shape": (n, n)} for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)),
    *({"shape": (63 + n, 31 + m)} for n in range(5) for m in range(5)),
    *({"shape": (127 + n, 63 + m)} for n in range(4) for m in range(4)),
    *({"shape": shape} for shape in ((0, 0), (0, 5), (5, 0), (1, 33), (33, 1), (1, 1000), (1000, 1), (2, 66), (66, 2))),
    *({"shape": shape} for shape in ((31, 65), (32, 64), (33, 63), (3, 257), (257, 3), (101, 203), (192, 96))),
    {"shape": (64, 32), "layout": "offset"},
    {"shape": (65, 33), "layout": "offset"},
    {"shape": (128, 64), "layout": "last input offset"},
    {"shape": (128, 64), "layout": "outputs offset"},
]

# How often the function can be differentiated, by its options.
DIFFERENTIABLE = [({}, 2)]

# Inputs are normal with this standard deviation, clamped to +-LARGEST.
SPREAD, LARGEST = 1.0, 2.0


def tolerance(dtype, version, mode):
    """(ulps, absolute): an output may be off by ulps * ulp(reference) + absolute.

    However 25 terms are added, none goes through more than 25 additions, each with a relative error of at most u. 1/25
    itself is rounded, and so is the product with it. So the mean is off by at most gamma(27) = 27 u / (1 - 27 u) times
    the mean of the terms' magnitudes (Higham, "Accuracy and Stability of Numerical Algorithms", section 4.2), and that is
    at most LARGEST. u is 2^-24, and 2^-53 for float64. The reference is such a mean too, in float64 throughout.

    A 16-bit result is the rounding of such a mean m' to the nearest number, and so off from m' by half an ulp at most:
    an ulp at the exact m, or twice that where m' has left the binade of m. But then a power of two lies between the two,
    and m' is no further from it, and from the nearest number, than from m: in either case the rounding adds no more than
    half an ulp of m or the bound once more.
    """
    unit = 2.0**-53 if dtype == torch.float64 else 2.0**-24
    bound = (gamma(27, unit) + gamma(27, 2.0**-53)) * LARGEST
    if dtype in (torch.float16, torch.bfloat16):
        return 0.5, 2 * bound
    return 0.0, bound


def gamma(n, unit):
    """How much n rounded operations in a row are off, relatively, at most."""
    return n * unit / (1 - n * unit)
