"""A copy as a PyTorch operator: its gradient, its shape under torch.compile, and the function to call.

`define` works on the operators that binding.cpp has registered; it needs torch and nothing of labkit.
"""

import torch
from torch.autograd import forward_ad


def define(namespace: str, latest: int):
    """Registers fake kernels and the gradient for torch.ops.<namespace> and returns the function `copy`.

    latest: the version that `copy` runs unless told otherwise.
    """
    forward = getattr(torch.ops, namespace).forward.default

    # What torch.compile needs to know: the result looks like empty_like of the input; forward_out returns nothing.
    torch.library.register_fake(forward, lambda x, version: torch.empty_like(x))
    torch.library.register_fake(f"{namespace}::forward_out", lambda x, y, version: torch._check(
        x.device == y.device, lambda: f"copy: x is on {x.device} and y on {y.device}. Move one to the other's device."))

    def keep_version(ctx, inputs, output):
        _, ctx.version = inputs

    def copy_of_grad(ctx, grad):
        return forward(grad, ctx.version), None

    torch.library.register_autograd(forward, copy_of_grad, setup_context=keep_version)

    def copy(x, *, version=latest):
        """A copy of x.

        x: any shape, strides and alignment; float16, bfloat16, float32 or float64; on the device of this build.
        version: a rung of the ladder in copy.cu; all give the same values.
        Returns a tensor like x, every bit the same.
        Gradients are autograd's reverse mode, any number of times; forward mode and torch.func's are not there.
        Raises RuntimeError for another dtype or device, or a version that this build does not have.
        """
        if forward_ad._current_level >= 0 and (torch.compiler.is_compiling() or forward_ad.unpack_dual(x).tangent is not None):
            # Compiled, it cannot be seen whether there is a tangent, and it would be dropped.
            raise NotImplementedError("copy: x may carry a forward-mode tangent; only reverse mode is there. "
                                      "Use backward().")
        return forward(x, version)

    return copy
