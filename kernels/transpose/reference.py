"""What the transpose kernels must compute, and the cases that `labkit.check` runs."""

import torch

# The operator's modes: the names of their inputs and outputs, and what the outputs must be.
MODES = {"forward": (("x",), ("y",), lambda x: (x.t(),))}

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# A block moves a tile of 32 x 32, a thread every eighth row of it: sides just under, at and just over 8, 32 and 64,
# a single row and column, shapes that are not square, none at all, and both arrays off the 16-byte grid. In v4 a thread
# turns a square of 2, 4 or 8 rows, a block 16 x 16 of them: one square, tiles nearly full, full, and just begun.
CASES = [
    *({"shape": (n, n)} for n in (1, 7, 8, 9, 31, 32, 33, 63, 64, 65)),
    *({"shape": shape} for shape in ((0, 0), (0, 5), (5, 0), (1, 33), (33, 1), (1, 1000), (1000, 1))),
    *({"shape": shape} for shape in ((31, 33), (33, 31), (32, 96), (96, 32), (3, 257), (257, 3), (101, 203))),
    *({"shape": shape} for shape in ((2, 8), (8, 4), (30, 34), (60, 68), (68, 60), (120, 136), (136, 120), (128, 256))),
    *({"shape": shape} for shape in ((128, 129), (129, 128), (124, 132), (4, 1000), (1000, 8))),
    {"shape": (32, 64), "layout": "offset"},
    {"shape": (33, 65), "layout": "offset"},
    {"shape": (64, 32), "layout": "last input offset"},
    {"shape": (64, 32), "layout": "outputs offset"},
]

# How often the function can be differentiated, by its options.
DIFFERENTIABLE = [({}, 2)]

# Inputs are normal with this standard deviation, clamped to +-LARGEST.
SPREAD, LARGEST = 1.0, 4.0


def tolerance(dtype, version, mode):
    """(ulps, absolute): an output may be off by ulps * ulp(reference) + absolute.

    Elements are moved and nothing is computed, so nothing is rounded.
    """
    return 0.0, 0.0
