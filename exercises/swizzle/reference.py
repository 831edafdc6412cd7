"""What the exercise has to compute."""

import torch

MODES = {"forward": (("x",), ("y",), lambda x: (torch.rot90(x, -1),))}
DTYPES = (torch.float32,)
CASES = [{"shape": (64, 96)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 1.0, 4.0


def tolerance(dtype, version, mode):
    """(ulps, absolute). Elements are moved and nothing is computed, so nothing is rounded."""
    return 0.0, 0.0
