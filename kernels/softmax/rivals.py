"""What a PyTorch user would run instead of our kernel: the alternatives that the labs measure beside it."""

import functools
import importlib.util

import torch

from labkit.operator import python_part


def composed(x):
    """Softmax written out in PyTorch operators."""
    e = torch.exp(x - x.amax(1, keepdim=True))
    return e / e.sum(1, keepdim=True)


def native(x):
    """PyTorch's own fused kernel."""
    return torch.softmax(x, 1)


def composed_backward(grad, y):
    """The gradient written out in PyTorch operators."""
    return y * (grad - (grad * y).sum(1, keepdim=True))


def native_backward(grad, y):
    """PyTorch's own fused backward kernel."""
    return torch.ops.aten._softmax_backward_data(grad, y, 1, y.dtype)


@functools.cache
def compiled(function):
    """torch.compile of one of the functions above, specialised for the shape that it sees."""
    return torch.compile(function, fullgraph=True, dynamic=False)


def compiled_backward(grad, y):
    """What torch.compile makes of PyTorch's own backward."""
    return compiled(native_backward)(grad, y)


@functools.cache
def triton():
    """The module rivals_triton.py, with forward(x) and backward(grad, y); None without Triton or a GPU."""
    if importlib.util.find_spec("triton") is None or not torch.cuda.is_available():
        return None
    return python_part("softmax", "rivals_triton")


def _those_here(written_out, own, label, of_triton):
    found = {"composed": written_out}
    if torch.cuda.is_available():
        found["torch.compile"] = compiled(own)
    return found | {label: own} | ({"Triton": getattr(triton(), of_triton)} if triton() else {})


def forward():
    """{label: function of x}, those that this machine has."""
    return _those_here(composed, native, "torch.softmax", "forward")


def backward():
    """{label: function of (grad, y)}, those that this machine has."""
    return _those_here(composed_backward, native_backward, "torch.softmax", "backward")
