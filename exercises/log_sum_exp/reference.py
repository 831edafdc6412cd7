"""What the exercise has to compute."""

import torch

MODES = {"forward": (("x",), ("y",), lambda x: (x.logsumexp(1),))}
DTYPES = (torch.float32,)
CASES = [{"shape": (2, 1000)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 40.0, 120.0  # exp(89) is too large for float32


def tolerance(dtype, version, mode, shape):
    """(ulps, absolute), for a matrix of this shape.

    u is 2^-24. An exponential of an element less the largest so far has an argument of at most 2 LARGEST, rounded, and is
    within 2 ulp: (2 LARGEST + 4) u. A lane scales its sum anew in each of its steps, and in 5 merges, by exponentials whose
    arguments add up to 2 LARGEST: again 2 LARGEST u, and 4u for each exp, u for its product and u for the addition. All terms
    are positive, so the sum is off by no more, relatively, and its logarithm by as much, absolutely. The logarithm, at most 8,
    is within 1 ulp, and the addition to the largest element rounds: half an ulp.
    """
    steps = -(-shape[1] // 32) + 5
    return 0.5, (1 + 2.0**-20) * (4 * LARGEST + 4 + 6 * steps + 8) * 2.0**-24
