"""What a PyTorch user would run instead of our kernel: the alternatives that the labs measure beside it."""

import torch
import torch.nn.functional as F


def slices(x):
    """Two views of x, added; the second one padded where the rows are odd."""
    half = (x.shape[1] + 1) // 2
    return torch.add(x[:, :half], F.pad(x[:, half:], (0, x.shape[1] % 2)))


def forward():
    """{label: function of x}, those that this machine has."""
    return {"two slices": slices}
