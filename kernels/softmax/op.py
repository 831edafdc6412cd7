"""Softmax of a matrix's rows as a PyTorch operator: gradients, shapes under torch.compile, the function a model calls.

`define` works on the operators that binding.cpp has registered; it needs torch and nothing of labkit.
"""

import torch
from torch.autograd import forward_ad


def define(namespace: str, latest: int):
    """Registers fake kernels and gradients for torch.ops.<namespace> and returns the function `softmax`.

    latest: the version that `softmax` runs unless told otherwise.
    """
    ops = getattr(torch.ops, namespace)
    forward, backward = ops.forward.default, ops.backward.default

    def shape_of_backward(grad, y, version):
        on_one_device("softmax backward", grad, y)
        return y.new_empty(y.shape)

    # What torch.compile needs to know: the shape of the result; the *_out ones return nothing.
    torch.library.register_fake(forward, lambda x, version: x.new_empty(x.shape))
    torch.library.register_fake(backward, shape_of_backward)
    for name in ("forward_out", "backward_out"):
        torch.library.register_fake(f"{namespace}::{name}", lambda *inputs: on_one_device("softmax", *inputs[:-1]))

    def keep_result(ctx, inputs, output):
        _, ctx.version = inputs
        ctx.save_for_backward(output)

    def grad_from_result(ctx, grad):
        (y,) = ctx.saved_tensors
        return backward(grad.contiguous(), y, ctx.version), None  # autograd passes on gradients of any strides

    torch.library.register_autograd(forward, grad_from_result, setup_context=keep_result)

    # The gradient of the gradient, for gradient penalties and the like: rare, so what is no softmax gradient itself is
    # composed of torch operators.
    def keep_grad_and_result(ctx, inputs, output):
        grad, y, ctx.version = inputs
        ctx.save_for_backward(grad, y)

    def second_grad(ctx, grad_grad):
        grad, y = ctx.saved_tensors
        return backward(grad_grad.contiguous(), y, ctx.version), grad_of_result(grad_grad, grad, y), None

    torch.library.register_autograd(backward, second_grad, setup_context=keep_grad_and_result)

    def softmax(x, *, version=latest):
        """Softmax of each row of x, y[r, c] = exp(x[r, c]) / (exp(x[r, 0]) + ... + exp(x[r, cols - 1])).

        The row's maximum is taken off first, so that nothing overflows.

        x: [rows, cols], contiguous; float16, bfloat16, float32 or float64; on the device of this build. Both extents
            may be 0.
        version: a rung of the ladder in softmax.cu.
        Returns [rows, cols], contiguous, of x's dtype; 16-bit elements are computed in float32 and rounded once. As with
            torch.softmax an element that is -inf gives 0, and a row with a NaN or with inf, or of nothing but -inf, is NaN.
            From version 6 on results below 2^-126 may be 0. A row of more than 8192 columns is too long for the
            registers of a block, and takes version 2.
        Gradients are autograd's reverse mode, any number of times; forward mode and torch.func's are not there. The
            result is kept for it.
        Raises RuntimeError for another dtype, device or number of dimensions, an x that is not contiguous, more than
        2^31 - 1 rows, or a version that this build does not have.
        """
        if forward_ad._current_level >= 0 and (torch.compiler.is_compiling() or forward_ad.unpack_dual(x).tangent is not None):
            # Compiled, it cannot be seen whether there is a tangent, and it would be dropped.
            raise NotImplementedError("softmax: x may carry a forward-mode tangent; only reverse mode is there. "
                                      "Use backward().")
        return forward(x, version)

    return softmax


def grad_of_result(grad_grad, grad, y):
    """What y * (grad - sum(grad * y)), weighted with grad_grad, gives for y; in float32 for 16 bits."""
    wide = [t if t.dtype == torch.float64 else t.float() for t in (grad_grad, grad, y)]
    grad_grad, grad, y_wide = wide
    along, across = ((t * y_wide).sum(1, keepdim=True) for t in (grad, grad_grad))
    return (grad_grad * (grad - along) - grad * across).to(y.dtype)


def on_one_device(op, *tensors):
    """Raises RuntimeError where they are not: with one on `meta` there would be results that nobody computed."""
    torch._check(len({t.device for t in tensors}) == 1, lambda: (
        f"{op}: the tensors are on {', '.join(str(t.device) for t in tensors)}, in this order. Move them to one device."))
