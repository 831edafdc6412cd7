"""What a PyTorch user would run instead of our kernel: the alternatives that the labs measure beside it."""

import torch.nn.functional as F


def native(x):
    """PyTorch's own fused kernel."""
    return F.gelu(x, approximate="tanh")


def forward():
    """{label: function of x}, those that this machine has."""
    return {"F.gelu": native}
