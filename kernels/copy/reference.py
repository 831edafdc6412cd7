"""What the copy kernels must compute, and the cases that `labkit.check` runs."""

import torch

# The operator's modes: the names of their inputs and outputs, and what the outputs must be.
MODES = {"forward": (("x",), ("y",), lambda x: (x,))}

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# A warp copies 32 elements, a block 256, and a group of warps 32, 64, 256 or 1024, depending on version; a vector has 2, 4
# or 8, a block of vectors 512, 1024 or 2048: sizes just under, at and just over each, two that leave a group of v4 nearly
# empty and nearly full, none at all, and layouts.
CASES = [
    *({"shape": (n,)} for n in (0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1023, 1024,
                                1025, 2047, 2048, 2049)),
    {"shape": (100_003,)},
    {"shape": (3, 5, 7)},
    {"shape": ()},
    {"shape": (2048,), "layout": "offset"},
    {"shape": (1025,), "layout": "offset"},
    {"shape": (1024,), "layout": "last input offset"},
    {"shape": (1024,), "layout": "outputs offset"},
    {"shape": (33, 65), "layout": "transposed"},
    {"shape": (2, 3, 9, 11), "layout": "channels_last"},
    {"shape": (65, 33), "layout": "strided"},
    {"shape": (17, 31), "layout": "expanded"},
]

# How often the function can be differentiated, by its options.
DIFFERENTIABLE = [({}, 2)]

# Inputs are normal with this standard deviation, clamped to +-LARGEST.
SPREAD, LARGEST = 1.0, 4.0


def tolerance(dtype, version, mode):
    """(ulps, absolute): an output may be off by ulps * ulp(reference) + absolute.

    Nothing is computed, so nothing is rounded: a copy is its original.
    """
    return 0.0, 0.0
