"""What the softmax kernels must compute: plain PyTorch in float64, and the cases that `labkit.check` runs."""

import torch


def gradient(grad, y):
    """The gradient of x where y = softmax(x), from that of y."""
    return y * (grad - (grad * y).sum(1, keepdim=True))


# The operator's modes: the names of their inputs and outputs, and what the outputs must be.
MODES = {
    "forward": (("x",), ("y",), lambda x: (x.softmax(1),)),
    "backward": (("grad", "y"), ("grad_x",), lambda grad, y: (gradient(grad, y),)),
}

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# Up to 128 columns are for 8 lanes, 256 for 16, 512 and 1024 for a warp; a block of 256 threads has up to 2048, 4096 or 8192,
# and a fitted block a multiple of 512 (float64: half of each but the warp's 1024). A block of lanes has 16, 8 or 4 rows, a
# vector 2, 4 or 8 elements. Rows around each, too long ones, empty ones, and arrays off the 16-byte grid.
CASES = [
    {"shape": (16, 256)},  # the usual one: several blocks also where a warp has a row
    *({"shape": (3, n)} for n in (0, 1, 2, 7, 8, 31, 32, 33, 64, 65, 127, 128, 129, 255, 256, 257, 264, 512, 513, 520)),
    *({"shape": (2, n)} for n in (1023, 1024, 1025, 1032, 1536, 1544, 2048, 2049, 2056, 4096, 4104)),
    *({"shape": (1, n)} for n in (8191, 8192, 8193, 8200, 20001)),
    *({"shape": (n, 40)} for n in (15, 16, 17, 33)),
    *({"shape": (n, 200)} for n in (8, 9)),
    *({"shape": (n, 520)} for n in (4, 5)),
    *({"shape": shape} for shape in ((0, 0), (0, 7), (1, 1), (9, 5))),
    *({"shape": (3, n), "layout": layout} for n in (512, 1536) for layout in ("offset", "last input offset", "outputs offset")),
    {"shape": (5, 513), "layout": "offset"},
]

# How often the function can be differentiated, by its options.
DIFFERENTIABLE = [({}, 2)]

# Inputs are normal with this standard deviation, clamped to +-LARGEST; gradients lie in [-2, 2].
SPREAD, LARGEST = 2.5, 8.0


def tolerance(dtype, version, mode, shape):
    """(ulps, absolute): an output may be off by ulps * ulp(reference) + absolute; for a matrix of this shape.

    u is the unit roundoff of the type that is computed in, 2^-24, and 2^-53 for float64. Relative errors add up, and a sum
    of numbers through which no term goes more than n additions deep is off by at most gamma(n) of the sum of their magnitudes
    (Higham, "Accuracy and Stability of Numerical Algorithms", section 4.2). A thread adds at most 32 terms, or every 256th
    of the row, and the tree over 512 threads is 9 deep.

    forward. x - m is at most 2 LARGEST and rounded, which the exponential makes a relative error of 2 LARGEST u; exp itself
    is within 2 ulp, 4u. In version 6 the difference is also multiplied by log2(e), which is rounded too, and exp2 is within
    2 ulp, 4u. So an exponential is off by e = (2 LARGEST + 4) u, or (6 LARGEST + 4) u. In the online form a
    thread scales its sum anew with each of its n - 1 growths of the maximum, of 2 LARGEST in all, and once for the block's:
    2 LARGEST u, and 5u for each exp and product. The result is the quotient of an exponential and a sum: 2e, what the sum
    adds, and the division's u, or 3u for a reciprocal within 1 ulp and a product. A relative error of r is r/u ulps at most
    of the type that is computed in; of a type with u' it is r/u', and the rounding adds half an ulp.

    backward. The sum is off by gamma(n + 1) cols 2 LARGEST, and the rest rounds it three times; the difference of two such
    numbers is multiplied by y, at most LARGEST. Rounding to 16 bits adds half an ulp of a number that is off by that much.
    """
    cols = shape[1]
    unit = {torch.float64: 2.0**-53}.get(dtype, 2.0**-24)
    stored = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}.get(dtype, unit)
    steps = -(-cols // 256)
    depth = max(32, steps) + 9
    if mode == "backward":
        largest = 2 * (1 + cols * LARGEST)  # of grad - sum, in magnitude
        return 0.5 if stored > unit else 0.0, (1 + stored) * LARGEST * (gamma(depth + 1, unit) + 3 * unit) * largest
    exponential = ((6 if version == 6 else 2) * LARGEST + 4) * unit
    online = (2 * LARGEST + 5 * steps) * unit if version >= 2 else 0.0
    relative = 2 * exponential + gamma(depth, unit) + online + 3 * unit
    return (0.5 if stored > unit else 0.0) + relative / stored, 0.0


def gamma(n, unit):
    """How much n rounded operations in a row are off, relatively, at most."""
    return n * unit / (1 - n * unit)
