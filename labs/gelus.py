"""The forms of GeLU (tanh form) that the training program can run, by name."""

from __future__ import annotations

from typing import Callable

import torch
from torch import Tensor

Activation = Callable[[Tensor], Tensor]
NAMES = "composed", "fused forward", "fused", "fused, derivative kept", "F.gelu", "torch.compile"


def gelus(gelu) -> dict[str, Activation]:
    """{each of NAMES: function of one tensor}. gelu: the operator that `labkit.load("gelu")` returns.

    "composed" is written in PyTorch's operators. "fused forward" computes GeLU in one kernel and its gradient in PyTorch's
    operators, which is the middle stage of the source article. "fused" computes both in a kernel each.
    """
    rivals = gelu.rivals
    forms = (rivals.composed, lambda x: _FusedForward.apply(x, gelu), gelu, lambda x: gelu(x, save="derivative"), rivals.native,
             lambda x: rivals.compiled(rivals.composed)(x))  # importing the compiler takes seconds: where it is used, not here
    return dict(zip(NAMES, forms, strict=True))


class _FusedForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, gelu) -> Tensor:
        ctx.save_for_backward(x)
        ctx.composed = gelu.rivals.composed
        return gelu.ops.forward(x, gelu.latest)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(ctx.composed(x), x, grad)[0], None
