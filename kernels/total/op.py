"""The sums of a matrix's rows and of all of it as a PyTorch operator: gradient, shapes under torch.compile, the function.

`define` works on the operators that binding.cpp has registered; it needs torch and nothing of labkit.
"""

import torch
from torch.autograd import forward_ad


def define(namespace: str, latest: int):
    """Registers fake kernels and the gradient for torch.ops.<namespace> and returns the function `total`.

    latest: the version that `total` runs unless told otherwise.
    """
    forward = getattr(torch.ops, namespace).forward.default

    # What torch.compile needs to know: the shapes of the results; forward_out returns nothing.
    torch.library.register_fake(forward, lambda x, version: (x.new_empty(x.shape[0]), x.new_empty(1)))
    torch.library.register_fake(f"{namespace}::forward_out", lambda x, sums, total, version: torch._check(
        x.device == sums.device == total.device, lambda: (
            f"total: x, sums and total are on {x.device}, {sums.device} and {total.device}. Move them to one device.")))

    def keep_shape(ctx, inputs, output):
        ctx.shape = inputs[0].shape

    def grad_of_each_element(ctx, grad_sums, grad_total):
        return (grad_sums[:, None] + grad_total).expand(ctx.shape), None

    torch.library.register_autograd(forward, grad_of_each_element, setup_context=keep_shape)

    def total(x, *, version=latest):
        """The sum of each row of x, and the sum of those.

        x: [rows, cols], contiguous; float32 or float64; on the device of this build. Both extents may be 0.
        version: of total.cu; the order of the additions is the same in all.
        Returns ([rows], [1]), of x's dtype.
        Gradients are autograd's reverse mode, any number of times; forward mode and torch.func's are not there.
        Raises RuntimeError for another dtype, device or number of dimensions, an x that is not contiguous, more than
        2^31 - 1 rows, or a version that this build does not have.
        """
        if forward_ad._current_level >= 0 and (torch.compiler.is_compiling() or forward_ad.unpack_dual(x).tangent is not None):
            # Compiled, it cannot be seen whether there is a tangent, and it would be dropped.
            raise NotImplementedError("total: x may carry a forward-mode tangent; only reverse mode is there. "
                                      "Use backward().")
        return forward(x, version)

    return total
