"""What the exercise has to compute."""

import torch

MODES = {"forward": (("x",), ("y",), lambda x: (x - x.mean(1, keepdim=True),))}
DTYPES = (torch.float32,)
CASES = [{"shape": (5, 300)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 1.0, 2.0


def tolerance(dtype, version, mode, shape):
    """(ulps, absolute), for a matrix of this shape.

    A thread adds every 128th element, a warp's tree is 5 deep, and four parts are added one after another, so no element goes
    through more than n additions. The mean, divided and rounded, is off by at most gamma(n + 1) LARGEST (Higham, "Accuracy and
    Stability of Numerical Algorithms", section 4.2). The difference rounds: half an ulp of a number that is off by as much.
    """
    additions = -(-shape[1] // 128) + 9
    bound = (additions + 1) * 2.0**-24 * LARGEST
    return 0.5, (1 + 2.0**-20) * bound
