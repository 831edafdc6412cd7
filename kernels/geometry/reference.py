"""What the kernels must compute: plain PyTorch in float64, and the cases that `labkit.check` runs.

The function is that of kernels/gelu: gelu(x) = x/2 (1 + tanh z) = x sigmoid(2z) with z = sqrt(2/pi) (x + 0.044715 x^3).
"""

import math

import torch


def gelu(x):
    """gelu(x) for a float64 tensor of any shape."""
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


# The operator's modes: the names of their inputs and outputs, and what the outputs must be.
MODES = {"forward": (("x",), ("y",), lambda x: (gelu(x),))}

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# Which version has so many elements a thread, by the order that a thread takes them in.
VERSIONS = {"consecutive": {1: 1, 2: 2, 4: 3, 8: 4, 16: 5}, "apart": {1: 1, 2: 6, 4: 7, 8: 8, 16: 9}}

# What the article chose: 4 consecutive elements a thread, 128 a block.
ARTICLE = {"elements": 4, "threads": 32}

# A thread has 1 to 16 elements and a block of 256 threads 256 to 4096, depending on version: sizes just under, at and just
# over each, a long odd one, none at all, and layouts.
CASES = [
    *({"shape": (n,)} for n in (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 256, 257, 511, 512, 513, 1023, 1024,
                                1025, 2047, 2048, 2049, 4095, 4096, 4097)),
    {"shape": (100_003,)},
    {"shape": (3, 5, 7)},
    {"shape": ()},
    {"shape": (4096,), "layout": "offset"},
    {"shape": (4097,), "layout": "last input offset"},
    {"shape": (4096,), "layout": "outputs offset"},
    {"shape": (33, 65), "layout": "transposed"},
    {"shape": (2, 3, 9, 11), "layout": "channels_last"},
    {"shape": (65, 33), "layout": "strided"},
    {"shape": (17, 31), "layout": "expanded"},
]

# How often the function can be differentiated, by its options.
DIFFERENTIABLE = [({}, 2)]

# Inputs are normal with this standard deviation, clamped to +-LARGEST.
SPREAD, LARGEST = 2.5, 8.0


def tolerance(dtype, version, mode):
    """(ulps, absolute): an output may be off by ulps * ulp(reference) + absolute.

    The exponential's argument is up to 71 for x = -8, or 50 to the base e. Some four roundings at that size make the
    exponential, and with it the result, wrong by up to 4 * 50 * 2^-24 of itself, in the tail: 100 to 200 ulp of float32, but
    the roundings rarely agree, and 128 holds. In float64 it is the same, the reference included. For a 16-bit result that is
    next to nothing beside half an ulp, the rounding of the store.
    """
    return (0.51 if dtype in (torch.float16, torch.bfloat16) else 128), 0.0
