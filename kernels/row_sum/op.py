"""The sum of each row of a matrix as a PyTorch operator: its gradient, its shape under torch.compile, the function.

`define` works on the operators that binding.cpp has registered; it needs torch and nothing of labkit.
"""

import torch
from torch.autograd import forward_ad


def define(namespace: str, latest: int):
    """Registers fake kernels and the gradient for torch.ops.<namespace> and returns the function `row_sum`.

    latest: the version that `row_sum` runs unless told otherwise.
    """
    forward = getattr(torch.ops, namespace).forward.default

    # What torch.compile needs to know: the shape of the result; forward_out returns nothing.
    torch.library.register_fake(forward, lambda x, version: x.new_empty(x.shape[0]))
    torch.library.register_fake(f"{namespace}::forward_out", lambda x, y, version: torch._check(
        x.device == y.device, lambda: f"row_sum: x is on {x.device} and y on {y.device}. Move one to the other's device."))

    def keep_shape(ctx, inputs, output):
        ctx.shape = inputs[0].shape

    def grad_of_each_element(ctx, grad):
        return grad[:, None].expand(ctx.shape), None

    torch.library.register_autograd(forward, grad_of_each_element, setup_context=keep_shape)

    def row_sum(x, *, version=latest):
        """The sum of each row of x, y[r] = x[r, 0] + ... + x[r, cols - 1].

        x: [rows, cols], contiguous; float16, bfloat16, float32 or float64; on the device of this build. Both extents
            may be 0: the sum of an empty row is 0.
        version: a rung of the ladder in row_sum.cu; the order of the additions differs, and so may the last digits.
        Returns [rows], of x's dtype. 16-bit elements are added in float32 and the sum is rounded once; a sum beyond
        float16's largest number is inf.
        Gradients are autograd's reverse mode, any number of times; forward mode and torch.func's are not there.
        Raises RuntimeError for another dtype, device or number of dimensions, an x that is not contiguous, more than
        2^31 - 1 rows, or a version that this build does not have.
        """
        if forward_ad._current_level >= 0 and (torch.compiler.is_compiling() or forward_ad.unpack_dual(x).tangent is not None):
            # Compiled, it cannot be seen whether there is a tangent, and it would be dropped.
            raise NotImplementedError("row_sum: x may carry a forward-mode tangent; only reverse mode is there. "
                                      "Use backward().")
        return forward(x, version)

    return row_sum
