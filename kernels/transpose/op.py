"""The transpose of a matrix as a PyTorch operator: its gradient, its shape under torch.compile, the function to call.

`define` works on the operators that binding.cpp has registered; it needs torch and nothing of labkit.
"""

import torch
from torch.autograd import forward_ad


def define(namespace: str, latest: int):
    """Registers fake kernels and the gradient for torch.ops.<namespace> and returns the function `transpose`.

    latest: the version that `transpose` runs unless told otherwise.
    """
    forward = getattr(torch.ops, namespace).forward.default

    # What torch.compile needs to know: the shape of the result; forward_out returns nothing.
    torch.library.register_fake(forward, lambda x, version: x.new_empty(x.shape[1], x.shape[0]))
    torch.library.register_fake(f"{namespace}::forward_out", lambda x, y, version: torch._check(
        x.device == y.device, lambda: f"transpose: x is on {x.device} and y on {y.device}. Move one to the other's device."))

    def keep_version(ctx, inputs, output):
        _, ctx.version = inputs

    def transpose_of_grad(ctx, grad):
        return forward(grad.contiguous(), ctx.version), None  # autograd passes on gradients of any strides

    torch.library.register_autograd(forward, transpose_of_grad, setup_context=keep_version)

    def transpose(x, *, version=latest):
        """The transpose of x as a tensor of its own, y[c, r] = x[r, c].

        x: [rows, cols], contiguous; float16, bfloat16, float32 or float64; on the device of this build. Both extents
            may be 0.
        version: a rung of the ladder in transpose.cu; all give the same values.
        Returns [cols, rows], contiguous, of x's dtype.
        Gradients are autograd's reverse mode, any number of times; forward mode and torch.func's are not there.
        Raises RuntimeError for another dtype, device or number of dimensions, an x that is not contiguous, or a version
        that this build does not have.
        """
        if forward_ad._current_level >= 0 and (torch.compiler.is_compiling() or forward_ad.unpack_dual(x).tangent is not None):
            # Compiled, it cannot be seen whether there is a tangent, and it would be dropped.
            raise NotImplementedError("transpose: x may carry a forward-mode tangent; only reverse mode is there. "
                                      "Use backward().")
        return forward(x, version)

    return transpose
