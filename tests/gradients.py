"""What the gradients of a random call must be: {operator: ...} by the reference's modes, or by the definition."""

import torch

from labkit import references


def gradients(op, call, inputs, returned, grads):
    """[(exact float64 gradient, ulps, absolute)] of the inputs: of what the operator kept, which has been rounded by then."""
    return OF[op.name](op, call, inputs, returned, grads)


def by_a_mode(op, call, mode, *tensors, scale=None):
    """By the mode of the reference that the gradient is."""
    tensors = [t.resolve_neg() for t in tensors]
    exact = references.exact_outputs(op.reference, mode, tensors)
    allowed = references.allowed(op.reference, mode, call.dtype, call.version, call.shape)
    return [(want, ulps, absolute * more) for want, (ulps, absolute), more in zip(exact, allowed, scale or [1.0] * len(exact))]


def of_gelu(op, call, inputs, returned, grads):
    if call.options["save"] == "input":
        return by_a_mode(op, call, "backward", *grads, *inputs)
    return by_a_mode(op, call, "backward_saved", *grads, op.ops.forward_derivative(*inputs, call.version)[1])


def of_geometry(op, call, inputs, returned, grads):
    """gelu's, composed of torch operators: in 16 bits the derivative is rounded, and its product with the gradient again."""
    x, = inputs
    with torch.enable_grad():
        wide = x.double().requires_grad_()
        derivative, = torch.autograd.grad(op.reference.gelu(wide).sum(), wide)
    # The exponential's relative error, 4 * 50 u (see the reference), counts |x| (2z)' s (1 - s) times, below 3; and a
    # derivative near 0 is a difference of numbers below 2.
    unit = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}.get(call.dtype, 0.0)
    compute = 2.0**-53 if call.dtype == torch.float64 else 2.0**-24
    half = 0.5 if unit else 1.0
    absolute = 2 * (unit * derivative.abs() * (1 + unit) + 2 * 600 * compute)
    return [(grads[0].double() * derivative, half, absolute)]


def of_add_norm(op, call, inputs, returned, grads):
    """The reference's bounds hold for a normalised row and a 1/deviation of 8 and of LARGEST at most, and grow with them."""
    _, h, mean, rstd = op.ops.forward(*inputs, call.version)
    normalised = ((h.double() - mean.double()[:, None]) * rstd.double()[:, None]).abs()
    n = max(1.0, normalised.max().item() / 8) if h.numel() else 1.0
    r = max(1.0, rstd.max().item() / op.reference.LARGEST) if rstd.numel() else 1.0
    of_x, of_weight, of_bias = by_a_mode(op, call, "backward", *grads, inputs[2], mean, rstd, h, scale=(n * n * r, n, 1.0))
    return [of_x, of_x, of_weight, of_bias]


def of_total(op, call, inputs, returned, grads):
    """One addition, rounded; float64's reference has it too."""
    of_sums, of_total = (g.double() for g in grads)
    return [((of_sums[:, None] + of_total).expand(call.shape), 0.5 if call.dtype == torch.float32 else 0.0, 0.0)]


def exactly(formula):
    """Numbers are moved, and nothing is rounded."""
    return lambda op, call, inputs, returned, grads: [(formula(*(g.double() for g in grads), inputs[0]), 0.0, 0.0)]


OF = {
    "copy": exactly(lambda grad, x: grad),
    "transpose": exactly(lambda grad, x: grad.t()),
    "row_sum": exactly(lambda grad, x: grad[:, None].expand(x.shape)),
    "fold": exactly(lambda grad, x: torch.cat([grad, grad[:, :x.shape[1] // 2]], 1)),
    "total": of_total,
    "stencil": lambda op, call, inputs, returned, grads: by_a_mode(op, call, "forward", *grads),
    "softmax": lambda op, call, inputs, returned, grads: by_a_mode(op, call, "backward", *grads, *returned),
    "gelu": of_gelu, "geometry": of_geometry, "add_norm": of_add_norm,
}
