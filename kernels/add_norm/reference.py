"""What the add_norm kernels must compute: plain PyTorch in float64, and the cases that `labkit.check` runs."""

import math

import torch

EPS = 1e-5


def add_norm(x, residual, weight, bias, dtype):
    """(y, h, mean, rstd) of float64 tensors; h is rounded to `dtype`, and the rest is of the rounded h."""
    h = (x + residual).to(dtype).double()
    cols = max(h.shape[1], 1)  # an empty row has the mean 0 and the variance 0
    mean = h.sum(1, keepdim=True) / cols
    rstd = 1 / torch.sqrt(((h - mean) ** 2).sum(1, keepdim=True) / cols + EPS)
    return (h - mean) * rstd * weight + bias, h, mean[:, 0], rstd[:, 0]


def gradients(grad_y, grad_h, weight, mean, rstd, h):
    """The gradients of x (and residual), weight and bias, where mean and rstd are those of h's rows."""
    cols = max(h.shape[1], 1)
    normalised, g = (h - mean[:, None]) * rstd[:, None], grad_y * weight
    along = g.sum(1, keepdim=True) / cols, (g * normalised).sum(1, keepdim=True) / cols
    grad_x = rstd[:, None] * (g - along[0] - normalised * along[1]) + grad_h
    return grad_x, (grad_y * normalised).sum(0), grad_y.sum(0)


# The operator's modes: the names of their inputs and outputs, and what the outputs must be.
MODES = {
    "forward": (("x", "residual", "weight", "bias"), ("y", "h", "mean", "rstd"), add_norm),
    "backward": (("grad_y", "grad_h", "weight", "mean", "rstd", "h"), ("grad_x", "grad_weight", "grad_bias"), gradients),
}
DIMENSIONS = {"weight": (1,), "bias": (1,), "mean": (0,), "rstd": (0,)}
WIDE = ("mean", "rstd")

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# By the elements that a thread keeps, a warp has up to 256, 512 or 1024 columns and a block of 256 threads up to 2048, 4096
# or 8192; a fitted block has a multiple of 512, or of 256 for the gradient and float64, up to 8192, or 4096 of float64. The
# gradient has up to 256 or 1024 blocks, and adds up 16 of their sums at a time. A block of warps has four rows, a vector 2, 4
# or 8 elements. Sizes around each, none at all, and arrays off the 16-byte grid.
CASES = [
    {"shape": (16, 256)},  # the usual one: several blocks also where a warp has a row
    *({"shape": (3, n)} for n in (0, 1, 2, 7, 8, 31, 32, 33, 127, 128, 129, 255, 257, 264, 512, 513, 520)),
    *({"shape": (2, n)} for n in (1023, 1024, 1025, 1032, 1536, 1544, 2048, 2049, 2056, 4096, 4104)),
    *({"shape": (1, n)} for n in (8191, 8192, 8193, 8200, 20001)),
    *({"shape": (n, 40)} for n in (4, 5, 15, 17, 33)),
    *({"shape": shape} for shape in ((0, 0), (0, 7), (1, 1), (9, 5))),
    *({"shape": (3, n), "layout": layout} for n in (512, 1536) for layout in ("offset", "last input offset", "outputs offset")),
    {"shape": (5, 513), "layout": "offset"},
]

# How often the function can be differentiated, by its options.
DIFFERENTIABLE = [({}, 1)]

# Inputs are normal with this standard deviation, clamped to +-LARGEST; gradients lie in [-2, 2].
SPREAD, LARGEST = 1.0, 2.0
LARGEST_RSTD = 32.0  # see `tolerance`


def tolerance(dtype, version, mode, shape):
    """{output: (ulps, absolute)}: it may be off by ulps * ulp(reference) + absolute; for matrices of this shape.

    u is the unit roundoff of the type that is computed in, 2^-24, and 2^-53 for float64. A sum of numbers through which no
    term goes more than n additions deep is off by at most gamma(n) of the sum of their magnitudes (Higham, "Accuracy and
    Stability of Numerical Algorithms", section 4.2). Rounding to 16 bits adds half an ulp of a number that is off by as much.

    forward. h: none, since the sum of two numbers of p bits, rounded to 2p + 2 bits or more and then to p, is rounded right
    (Figueroa, 1995). mean: a thread adds at most 32 terms, or every 256th, and the tree is 9 deep; |h| <= H = 2 LARGEST. So
    it is off by d = gamma(n + 1) H. rstd: differences from that mean have an average square that is off by d^2 and
    gamma(n + 4) of it; relative to variance + EPS that is gamma(n + 6) + d^2 / EPS, of which the root takes half, and root and
    quotient add 2.5 u. y: (d + u 2 H) rstd weight from the difference, and the relative errors of the rest.

    Welford (version 4). An update rounds the mean, by u H, and the step, by 3u of 2 H / k; a merge rounds by 5u H. With 32
    updates and 10 merges that is d = (32 + 6 (1 + ln 32) + 50) u H at most. A square is a product of two differences from such
    means, and Cauchy's inequality bounds their sum: the variance is off by 10 d sqrt(variance), or 10 d rstd relatively.

    rstd may be as large as 1 / sqrt(EPS) = 316, where a row's elements are all but equal. With these inputs only rows of a few
    columns come near, whose sums are short. LARGEST_RSTD is what longer ones stay below.

    backward. Here |h|, |mean|, |rstd| <= LARGEST, so the normalised n is at most 8, g = grad * weight 4 and g n 32; what
    is in parentheses then is at most 4 + 4 + 8 * 32, and its two averages are off by gamma of 4 and, times n, of 8 * 32. The
    sums over rows add rows of at most 16 and 2, in whatever order.
    """
    rows, cols = shape
    unit = 2.0**-53 if dtype == torch.float64 else 2.0**-24
    stored = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}.get(dtype, 0.0)

    def rounded(bound):
        return (0.5 if stored else 0.0), (1 + stored) * bound

    if mode == "backward":
        of_x = gamma(max(8, -(-cols // 512)) + 14, unit) * 260 + 8 * 264 * unit
        in_rows = gamma(rows + 20, unit) * rows
        return {"grad_x": rounded(LARGEST * of_x + 530 * unit), "grad_weight": rounded(16 * in_rows),
                "grad_bias": rounded(2 * in_rows)}
    depth, largest = max(32, -(-cols // 256)) + 9, 2 * LARGEST
    of_mean = gamma(depth + 1, unit) * largest
    relative = (gamma(depth + 6, unit) + of_mean**2 / EPS) / 2 + 2.5 * unit
    if version == 4:
        of_mean = max(of_mean, (32 + 6 * (1 + math.log(32)) + 50) * unit * largest)
        relative += 5 * of_mean * LARGEST_RSTD
    normalised = min(math.sqrt(cols), 2 * largest * LARGEST_RSTD)
    of_y = LARGEST * ((of_mean + 2 * largest * unit) * LARGEST_RSTD + normalised * (relative + 4 * unit)) + LARGEST * unit
    return {"y": rounded(of_y), "h": (0.0, 0.0), "mean": (0.0, of_mean), "rstd": (relative / unit, 0.0)}


def gamma(n, unit):
    """How much n rounded operations in a row are off, relatively, at most."""
    return n * unit / (1 - n * unit)
