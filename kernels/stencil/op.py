"""The mean of each 5 x 5 neighbourhood as a PyTorch operator: its gradient, its shape under torch.compile, the function.

`define` works on the operators that binding.cpp has registered; it needs torch and nothing of labkit.
"""

import torch
from torch.autograd import forward_ad


def define(namespace: str, latest: int):
    """Registers fake kernels and the gradient for torch.ops.<namespace> and returns the function `stencil`.

    latest: the version that `stencil` runs unless told otherwise.
    """
    forward = getattr(torch.ops, namespace).forward.default

    # What torch.compile needs to know: the shape of the result; forward_out returns nothing.
    torch.library.register_fake(forward, lambda x, version: x.new_empty(x.shape))
    torch.library.register_fake(f"{namespace}::forward_out", lambda x, y, version: torch._check(
        x.device == y.device, lambda: f"stencil: x is on {x.device} and y on {y.device}. Move one to the other's device."))

    def keep_version(ctx, inputs, output):
        _, ctx.version = inputs

    def mean_of_grad(ctx, grad):
        # An element counts 1/25 in the mean of each neighbour, and is a neighbour of its neighbours: the same operator.
        return forward(grad.contiguous(), ctx.version), None  # autograd passes on gradients of any strides

    torch.library.register_autograd(forward, mean_of_grad, setup_context=keep_version)

    def stencil(x, *, version=latest):
        """The mean of the 5 x 5 neighbours of each element, y[r, c] = (x[r - 2, c - 2] + ... + x[r + 2, c + 2]) / 25.

        Neighbours outside of x count as 0; what is divided by is 25 all the same.

        x: [rows, cols], contiguous; float16, bfloat16, float32 or float64; on the device of this build. Both extents
            may be 0.
        version: a rung of the ladder in stencil.cu; the order of the additions differs, and so may the last digits.
        Returns [rows, cols], contiguous, of x's dtype. 16-bit elements are added in float32 and the mean is rounded once;
            where a sum is beyond the largest number of the type that it is formed in, the mean is inf.
        Gradients are autograd's reverse mode, any number of times; forward mode and torch.func's are not there.
        Raises RuntimeError for another dtype, device or number of dimensions, an x that is not contiguous, or a version
        that this build does not have.
        """
        if forward_ad._current_level >= 0 and (torch.compiler.is_compiling() or forward_ad.unpack_dual(x).tangent is not None):
            # Compiled, it cannot be seen whether there is a tangent, and it would be dropped.
            raise NotImplementedError("stencil: x may carry a forward-mode tangent; only reverse mode is there. "
                                      "Use backward().")
        return forward(x, version)

    return stencil
