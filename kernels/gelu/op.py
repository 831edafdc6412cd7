"""GeLU (tanh form) as a PyTorch operator: gradients, shapes under torch.compile, and the function a model calls.

`define` works on the operators that binding.cpp has registered; it needs torch and nothing of labkit.
"""

import math

import torch
from torch.autograd import forward_ad


def define(namespace: str, latest: int):
    """Registers fake kernels and gradients for torch.ops.<namespace> and returns the function `gelu`.

    latest: the version that `gelu` runs unless told otherwise.
    """
    ops = getattr(torch.ops, namespace)
    forward, forward_derivative = ops.forward.default, ops.forward_derivative.default
    backward, backward_saved = ops.backward.default, ops.backward_saved.default

    def shape_of_backward(grad, factor, version):
        on_one_device("gelu backward", grad, factor)
        return torch.empty_like(factor)

    # What torch.compile needs to know: results look like empty_like of the input; the *_out ones return nothing.
    torch.library.register_fake(forward, lambda x, version: torch.empty_like(x))
    torch.library.register_fake(forward_derivative, lambda x, version: (torch.empty_like(x), torch.empty_like(x)))
    torch.library.register_fake(backward, shape_of_backward)
    torch.library.register_fake(backward_saved, shape_of_backward)
    for name in ("forward_out", "forward_derivative_out", "backward_out", "backward_saved_out"):
        torch.library.register_fake(f"{namespace}::{name}", lambda *inputs: on_one_device("gelu", *inputs[:-1]))

    def keep_input(ctx, inputs, output):
        x, ctx.version = inputs
        ctx.save_for_backward(x)

    def grad_from_input(ctx, grad):
        (x,) = ctx.saved_tensors
        return backward(grad, x, ctx.version), None

    torch.library.register_autograd(forward, grad_from_input, setup_context=keep_input)

    def keep_derivative(ctx, inputs, output):
        _, ctx.version = inputs
        _, derivative = output
        ctx.mark_non_differentiable(derivative)
        ctx.set_materialize_grads(False)  # or autograd would fill a tensor of zeros for it
        ctx.save_for_backward(derivative)

    def grad_from_derivative(ctx, grad, _):
        if grad is None:
            return None, None
        if torch.is_grad_enabled():  # as under create_graph=True: what follows would be differentiated again
            raise NotImplementedError('gelu: save="derivative" has no second gradient, since x is gone by then. '
                                      'Use save="input" where you differentiate twice.')
        (derivative,) = ctx.saved_tensors
        return backward_saved(grad, derivative, ctx.version), None

    torch.library.register_autograd(forward_derivative, grad_from_derivative, setup_context=keep_derivative)

    # The gradient of the gradient, for gradient penalties and the like: rare, so composed of torch operators.
    def keep_grad_and_input(ctx, inputs, output):
        grad, x, ctx.version = inputs
        ctx.save_for_backward(grad, x)

    def second_grad(ctx, grad_grad):
        grad, x = ctx.saved_tensors
        return backward(grad_grad, x, ctx.version), grad_grad * grad * second_derivative(x), None

    torch.library.register_autograd(backward, second_grad, setup_context=keep_grad_and_input)

    def keep_factors(ctx, inputs, output):
        grad, derivative, ctx.version = inputs
        ctx.save_for_backward(grad, derivative)

    def grad_of_product(ctx, grad_grad):
        grad, derivative = ctx.saved_tensors
        return backward_saved(grad_grad, derivative, ctx.version), backward_saved(grad_grad, grad, ctx.version), None

    torch.library.register_autograd(backward_saved, grad_of_product, setup_context=keep_factors)

    def gelu(x, *, save="input", version=latest):
        """GeLU of x, elementwise: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

        x: any shape, strides and alignment; float16, bfloat16, float32 or float64; on the device of this build.
        save: what autograd keeps for the backward pass, one tensor like x either way. "input" keeps x and computes
            the derivative again from it; "derivative" writes the derivative in the forward pass and keeps that.
        version: a rung of the ladder in gelu.cu.
        Returns a tensor like x. gelu(inf) = inf, and NaN stays NaN. From version 7 on gelu(-inf) = 0, and the gradients at
        infinities are 0 and 1, the limits. In earlier versions a 0 meets an infinity there, in the gradient also where a
        factor overflows: NaN. An x that does not start at a multiple of 16 bytes takes the slower version 2 from version 4 on.
        Gradients are autograd's reverse mode, twice for save="input"; forward mode and torch.func's are not there.
        Raises RuntimeError for another dtype or device, or a version that this build does not have; ValueError for
        another `save`.
        """
        if save not in ("input", "derivative"):
            raise ValueError(f'gelu: save is {save!r}; it takes "input" or "derivative"')
        if forward_ad._current_level >= 0 and (torch.compiler.is_compiling() or forward_ad.unpack_dual(x).tangent is not None):
            # Compiled, it cannot be seen whether there is a tangent, and it would be dropped.
            raise NotImplementedError("gelu: x may carry a forward-mode tangent; only reverse mode is there. "
                                      "Use backward().")
        if save == "derivative" and x.requires_grad and torch.is_grad_enabled():
            return forward_derivative(x, version)[0]
        return forward(x, version)

    return gelu


def second_derivative(x):
    """gelu''(x), computed in float32 for 16-bit x."""
    wide = (x if x.dtype == torch.float64 else x.float()).clamp(-16, 16)  # beyond, it is 0, and its factors overflow
    a, b = math.sqrt(2 / math.pi), 0.044715
    slope, bend = 2 * a * (1 + 3 * b * wide**2), 12 * a * b * wide  # of 2z
    s = torch.sigmoid(2 * a * wide * (1 + b * wide**2))
    return (s * (1 - s) * (2 * slope + wide * (slope**2 * (1 - 2 * s) + bend))).to(x.dtype)


def on_one_device(op, *tensors):
    """Raises RuntimeError where they are not: with one on `meta` there would be results that nobody computed."""
    torch._check(len({t.device for t in tensors}) == 1, lambda: (
        f"{op}: the tensors are on {', '.join(str(t.device) for t in tensors)}, in this order. Move them to one device."))
