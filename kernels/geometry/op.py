"""GeLU with a launch geometry to choose, as a PyTorch operator: gradient, shapes under torch.compile, the function to call.

`define` works on the operators that binding.cpp has registered; it needs torch and nothing of labkit.
"""

import math

import torch
from torch.autograd import forward_ad


def define(namespace: str, latest: int):
    """Registers fake kernels and gradients for torch.ops.<namespace> and returns the function `geometry`.

    latest: the version that `geometry` runs unless told otherwise.
    """
    ops = getattr(torch.ops, namespace)
    forward, sweep = ops.forward.default, ops.sweep.default

    # What torch.compile needs to know: results look like empty_like of the input; the *_out ones return nothing.
    torch.library.register_fake(forward, lambda x, version: torch.empty_like(x))
    torch.library.register_fake(sweep, lambda x, version, threads: torch.empty_like(x))
    for name in ("forward_out", "sweep_out"):
        torch.library.register_fake(f"{namespace}::{name}", lambda x, y, *numbers: torch._check(
            x.device == y.device, lambda: f"geometry: x is on {x.device} and y on {y.device}. Move one to the other's device."))

    def keep_input(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.others = (None,) * (len(inputs) - 1)

    def grad_from_input(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * derivative(x), *ctx.others

    for function in (forward, sweep):
        torch.library.register_autograd(function, grad_from_input, setup_context=keep_input)

    def geometry(x, *, version=latest, threads=256):
        """GeLU of x, elementwise: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

        x: any shape, strides and alignment; float16, bfloat16, float32 or float64; on the device of this build.
        version: how many elements a thread has, and in which order; see geometry.cu. threads: of a block, 1 to 1024. Both
        change the time and not the values.
        Returns a tensor like x. gelu(-inf) = 0 and gelu(inf) = inf, the limits; NaN stays NaN.
        The operator is there to measure the forward pass. Its gradient is composed of torch operators, in autograd's reverse
        mode, any number of times; forward mode and torch.func's are not there.
        Raises RuntimeError for another dtype or device, a version that this build does not have, another number of
        threads, or an x that needs more blocks than a grid has.
        """
        if forward_ad._current_level >= 0 and (torch.compiler.is_compiling() or forward_ad.unpack_dual(x).tangent is not None):
            # Compiled, it cannot be seen whether there is a tangent, and it would be dropped.
            raise NotImplementedError("geometry: x may carry a forward-mode tangent; only reverse mode is there. "
                                      "Use backward().")
        return sweep(x, version, threads)

    return geometry


def derivative(x):
    """gelu'(x), computed in float32 for 16-bit x: s (1 + x (2z)' (1 - s)) with s = sigmoid(2z), as kernels/gelu has it."""
    wide = (x if x.dtype == torch.float64 else x.float()).clamp(-40, 40)  # beyond, it is 0 or 1, and its factors overflow
    a, b = 2 * math.sqrt(2 / math.pi), 0.044715
    s = torch.sigmoid(a * wide * (1 + b * wide**2))
    return (s * (1 + wide * a * (1 + 3 * b * wide**2) * (1 - s))).to(x.dtype)
