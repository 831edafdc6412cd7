"""What the exercise has to compute."""

import torch

MODES = {"forward": (("x",), ("y",), lambda x: (-x,))}
DTYPES = (torch.float32,)
CASES = [{"shape": (1024,)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 1.0, 2.0


def given(mode, inputs):
    """An x of 1000 elements begins one element after a multiple of 16 bytes, as `x[1:]` of a tensor does."""
    (x,) = inputs
    return [torch.cat([x[:1], x])[1:] if len(x) == 1000 else x]


def tolerance(dtype, version, mode):
    """(ulps, absolute). A sign is changed, and nothing is rounded."""
    return 0.0, 0.0
