"""What the fold kernels must compute, and the cases that `labkit.check` runs."""

import torch


def halves_added(x):
    """Each row's first half, one longer where the row is odd, plus its second half."""
    half = (x.shape[1] + 1) // 2
    return x[:, :half] + torch.nn.functional.pad(x[:, half:], (0, x.shape[1] % 2))


# The operator's modes: the names of their inputs and outputs, and what the outputs must be.
MODES = {"forward": (("x",), ("y",), lambda x: (halves_added(x),))}

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# A block has a thread a column and in version 2 four rows: widths around a warp, around two and up to the widest block,
# numbers of rows around four and eight, none at all, and both arrays off the 16-byte grid.
CASES = [
    *({"shape": (3, n)} for n in (1, 2, 3, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1023, 1024)),
    *({"shape": (n, 66)} for n in (1, 2, 4, 5, 7, 8, 9, 31)),
    *({"shape": shape} for shape in ((0, 0), (0, 7), (3, 0), (257, 5))),
    {"shape": (5, 256), "layout": "offset"},
    {"shape": (5, 256), "layout": "last input offset"},
    {"shape": (5, 256), "layout": "outputs offset"},
]

# How often the function can be differentiated, by its options.
DIFFERENTIABLE = [({}, 2)]

# Inputs are normal with this standard deviation, clamped to +-LARGEST.
SPREAD, LARGEST = 1.0, 2.0


def tolerance(dtype, version, mode):
    """(ulps, absolute): an output may be off by ulps * ulp(reference) + absolute.

    One addition, rounded: half an ulp. Sums of 16-bit numbers are first rounded to float32, to within 2^-24 of at most
    2 * LARGEST, and then to 16 bits. The reference, of float64, has that addition too.
    """
    if dtype == torch.float64:
        return 1.0, 0.0
    return 0.5, 0.0 if dtype == torch.float32 else 2 * LARGEST * 2.0**-24
