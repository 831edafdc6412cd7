"""A residual connection and LayerNorm as one PyTorch operator: gradients, shapes under torch.compile, the function.

`define` works on the operators that binding.cpp has registered; it needs torch and nothing of labkit.
"""

import torch
from torch.autograd import forward_ad


def define(namespace: str, latest: int):
    """Registers fake kernels and the gradient for torch.ops.<namespace> and returns the function `add_norm`.

    latest: the version that `add_norm` runs unless told otherwise.
    """
    ops = getattr(torch.ops, namespace)
    forward, backward = ops.forward.default, ops.backward.default

    def shapes_of_forward(x, residual, weight, bias, version):
        on_one_device("add_norm", x, residual, weight, bias)
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        rows = x.shape[:1]
        return x.new_empty(x.shape), x.new_empty(x.shape), x.new_empty(rows, dtype=wide), x.new_empty(rows, dtype=wide)

    def shapes_of_backward(grad_y, grad_h, weight, mean, rstd, h, version):
        on_one_device("add_norm backward", grad_y, grad_h, weight, mean, rstd, h)
        return h.new_empty(h.shape), h.new_empty(h.shape[1:]), h.new_empty(h.shape[1:])

    # What torch.compile needs to know: the shapes of the results; the *_out ones return nothing.
    torch.library.register_fake(forward, shapes_of_forward)
    torch.library.register_fake(backward, shapes_of_backward)
    for name in ("forward_out", "backward_out"):
        torch.library.register_fake(f"{namespace}::{name}", lambda *inputs: on_one_device("add_norm", *inputs[:-1]))

    def keep_sum_and_moments(ctx, inputs, output):
        _, _, weight, _, ctx.version = inputs
        _, h, mean, rstd = output
        ctx.mark_non_differentiable(mean, rstd)
        ctx.set_materialize_grads(False)  # or autograd would fill tensors of zeros for these two
        ctx.save_for_backward(weight, mean, rstd, h)

    def grads(ctx, grad_y, grad_h, _grad_mean, _grad_rstd):
        if torch.is_grad_enabled():  # as under create_graph=True: what follows would be differentiated again
            raise NotImplementedError("add_norm has no second gradient. Use F.layer_norm(x + residual, ...) where you "
                                      "differentiate twice.")
        weight, mean, rstd, h = ctx.saved_tensors
        # Autograd passes on gradients of any strides, and None for a result that nobody used.
        grad_y, grad_h = (torch.zeros_like(h) if grad is None else grad.contiguous() for grad in (grad_y, grad_h))
        grad_x, grad_weight, grad_bias = backward(grad_y, grad_h, weight, mean, rstd, h, ctx.version)
        return grad_x, grad_x, grad_weight, grad_bias, None

    torch.library.register_autograd(forward, grads, setup_context=keep_sum_and_moments)

    def add_norm(x, residual, weight, bias, *, version=latest):
        """h = x + residual, and LayerNorm of each row of h: y = (h - mean) / sqrt(variance + 1e-5) * weight + bias.

        x, residual: [rows, cols], contiguous; float16, bfloat16, float32 or float64; on the device of this build. Both
            extents may be 0. weight, bias: [cols], of the same dtype.
        version: a rung of the ladder in add_norm.cu. The gradient is the same in all.
        Returns (y, h), both [rows, cols], contiguous, of x's dtype. h is rounded to it, and y is of the rounded h; 16-bit
            elements are computed in float32, and y is rounded once. A row of more than 8192 columns (4096 of float64 from
            version 5 on) is too long for the registers of a block, and takes version 1.
        Gradients are autograd's reverse mode, once: the second one is not there, nor are forward mode and torch.func's.
            h, weight and two numbers a row are kept for it. It uses no atomics and has the same bits each time.
        Raises RuntimeError for another dtype, device or number of dimensions, shapes that do not fit, what is not
        contiguous, more than 2^31 - 1 rows, or a version that this build does not have.
        """
        tensors = (x, residual, weight, bias)
        if forward_ad._current_level >= 0 and (torch.compiler.is_compiling() or any(
                forward_ad.unpack_dual(t).tangent is not None for t in tensors)):
            # Compiled, it cannot be seen whether there is a tangent, and it would be dropped.
            raise NotImplementedError("add_norm: an input may carry a forward-mode tangent; only reverse mode is there. "
                                      "Use backward().")
        return forward(*tensors, version)[:2]

    return add_norm


def on_one_device(op, *tensors):
    """Raises RuntimeError where they are not: with one on `meta` there would be results that nobody computed."""
    torch._check(len({t.device for t in tensors}) == 1, lambda: (
        f"{op}: the tensors are on {', '.join(str(t.device) for t in tensors)}, in this order. Move them to one device."))
