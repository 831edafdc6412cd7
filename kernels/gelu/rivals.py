"""What a PyTorch user would run instead of our kernel: the alternatives that the labs measure beside it."""

import functools
import importlib.util
import math

import torch
import torch.nn.functional as F

from labkit.operator import python_part

ROOT_2_OVER_PI = math.sqrt(2 / math.pi)


def composed(x):
    """GeLU written out in PyTorch operators, expression for expression as in the source article's kernel."""
    cube = 0.044715 * x * x * x
    return 0.5 * x * (1.0 + torch.tanh(ROOT_2_OVER_PI * (x + cube)))


def composed_pow(x):
    """The same with pow for the cube, as early GPT-2 implementations had it: one operator less and fewer bytes."""
    return 0.5 * x * (1.0 + torch.tanh(ROOT_2_OVER_PI * (x + 0.044715 * torch.pow(x, 3.0))))


def sigmoid_form(x):
    """The same function as x sigmoid(2z), also in PyTorch operators: what a user can change without a kernel."""
    return x * torch.sigmoid(2 * ROOT_2_OVER_PI * (x + 0.044715 * x * x * x))


def native(x):
    """PyTorch's own fused kernel."""
    return F.gelu(x, approximate="tanh")


def native_backward(grad, x):
    """PyTorch's own fused backward kernel."""
    return torch.ops.aten.gelu_backward(grad, x, approximate="tanh")


@functools.cache
def compiled(function):
    """torch.compile of one of the functions above, specialised for the shape that it sees."""
    return torch.compile(function, fullgraph=True, dynamic=False)


@functools.cache
def triton():
    """The module rivals_triton.py, with forward(x), backward(grad, x) and apply(x); None without Triton or a GPU."""
    if importlib.util.find_spec("triton") is None or not torch.cuda.is_available():
        return None
    return python_part("gelu", "rivals_triton")


def written_out():
    """{label: function of x} in PyTorch operators, eager; and compiled where there is a GPU."""
    found = {"composed": composed, "composed, pow": composed_pow}
    if torch.cuda.is_available():
        found |= {"torch.compile": compiled(composed), "torch.compile, sigmoid": compiled(sigmoid_form)}
    return found | {"F.gelu": native}


def forward():
    """{label: function of x}, those that this machine has."""
    return written_out() | ({"Triton": triton().forward} if triton() else {})


def backward():
    """{label: function of (grad, x)}: only those that are a backward function by themselves."""
    return {"F.gelu": native_backward} | ({"Triton": triton().backward} if triton() else {})


def training():
    """{label: function of (x, grad)}: the forward pass and the gradient of x that autograd makes of it."""
    found = written_out() | ({"Triton": triton().apply} if triton() else {})
    return {label: differentiated(function) for label, function in found.items()}


def differentiated(function):
    """A function of (x, grad) that runs `function` on x, then autograd's backward pass, and returns x's gradient."""
    def both(x, grad):
        return torch.autograd.grad(function(x), x, grad)[0]

    return both
