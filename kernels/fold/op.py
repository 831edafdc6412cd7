"""The halves of each row of a matrix, added, as a PyTorch operator: its gradient, its shape under torch.compile, the function.

`define` works on the operators that binding.cpp has registered; it needs torch and nothing of labkit.
"""

import torch
from torch.autograd import forward_ad


def define(namespace: str, latest: int):
    """Registers fake kernels and the gradient for torch.ops.<namespace> and returns the function `fold`.

    latest: the version that `fold` runs unless told otherwise.
    """
    forward = getattr(torch.ops, namespace).forward.default

    # What torch.compile needs to know: the shape of the result; forward_out returns nothing.
    torch.library.register_fake(forward, lambda x, version: x.new_empty(x.shape[0], (x.shape[1] + 1) // 2))
    torch.library.register_fake(f"{namespace}::forward_out", lambda x, y, version: torch._check(
        x.device == y.device, lambda: f"fold: x is on {x.device} and y on {y.device}. Move one to the other's device."))

    def keep_cols(ctx, inputs, output):
        ctx.cols = inputs[0].shape[1]

    def grad_of_both_halves(ctx, grad):
        return torch.cat([grad, grad[:, :ctx.cols // 2]], 1), None

    torch.library.register_autograd(forward, grad_of_both_halves, setup_context=keep_cols)

    def fold(x, *, version=latest):
        """Each row of x folded in half, y[r, c] = x[r, c] + x[r, c + half], half being (cols + 1) // 2.

        The middle element of an odd row is added to nothing.

        x: [rows, cols], contiguous; float16, bfloat16, float32 or float64; on the device of this build. cols is at most
            1024; both extents may be 0.
        version: of fold.cu; all give the same bits.
        Returns [rows, half], contiguous, of x's dtype. 16-bit elements are added in float32 and the sum is rounded once.
        Gradients are autograd's reverse mode, any number of times; forward mode and torch.func's are not there.
        Raises RuntimeError for another dtype, device or number of dimensions, an x that is not contiguous, more than 1024
        columns or 2^31 - 1 rows, or a version that this build does not have.
        """
        if forward_ad._current_level >= 0 and (torch.compiler.is_compiling() or forward_ad.unpack_dual(x).tangent is not None):
            # Compiled, it cannot be seen whether there is a tangent, and it would be dropped.
            raise NotImplementedError("fold: x may carry a forward-mode tangent; only reverse mode is there. "
                                      "Use backward().")
        return forward(x, version)

    return fold
