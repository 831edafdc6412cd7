"""What a PyTorch user would run instead of our kernel: the alternatives that the labs measure beside it."""

import functools
import importlib.util

import torch
import torch.nn.functional as F

from labkit.operator import python_part

EPS = 1e-5


def composed(x, residual, weight, bias):
    """Written out in PyTorch operators."""
    h = x + residual
    centred = h - h.mean(1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(1, keepdim=True) + EPS) * weight + bias, h


def native(x, residual, weight, bias):
    """PyTorch's addition, then its own LayerNorm kernel: what most models run."""
    h = x + residual
    return F.layer_norm(h, h.shape[1:], weight, bias, EPS), h


def native_backward(grad_y, grad_h, weight, mean, rstd, h):
    """PyTorch's own LayerNorm gradient, then the addition of the gradient that arrives through h."""
    grad_x, grad_weight, grad_bias = torch.ops.aten.native_layer_norm_backward(
        grad_y, h, h.shape[1:], mean[:, None], rstd[:, None], weight, weight, [True, True, True])
    return grad_x + grad_h, grad_weight, grad_bias


@functools.cache
def compiled(function):
    """torch.compile of one of the functions above, specialised for the shape that it sees."""
    return torch.compile(function, fullgraph=True, dynamic=False)


@functools.cache
def triton():
    """The module rivals_triton.py, with forward(x, residual, weight, bias); None without Triton or a GPU."""
    if importlib.util.find_spec("triton") is None or not torch.cuda.is_available():
        return None
    return python_part("add_norm", "rivals_triton")


def forward():
    """{label: function of (x, residual, weight, bias)} to (y, h), those that this machine has."""
    found = {"composed": composed}
    if torch.cuda.is_available():
        found["torch.compile"] = compiled(native)
    return found | {"F.layer_norm": native} | ({"Triton": triton().forward} if triton() else {})


def backward():
    """{label: function of (grad_y, grad_h, weight, mean, rstd, h)}: only what is a backward function by itself."""
    found = {"F.layer_norm": native_backward}
    return ({"torch.compile": compiled(native_backward)} if torch.cuda.is_available() else {}) | found
