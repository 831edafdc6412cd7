"""What the exercise has to compute. The derivative is autograd's, so that it owes nothing to a formula."""

import torch


def silu(x):
    return x * torch.sigmoid(x)


def derivative(x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(silu(x).sum(), x)[0]


MODES = {"forward_derivative": (("x",), ("y", "derivative"), lambda x: (silu(x), derivative(x)))}
DTYPES = (torch.float16, torch.float32)
CASES = [{"shape": (1000,)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 2.5, 8.0


def tolerance(dtype, version, mode):
    """{output: (ulps, absolute)}.

    u is 2^-24. exp is within 2 ulp, 4u; sum and quotient make the sigmoid s wrong by 6u of itself, and y by 7u. In the derivative
    1 - s is off by 7u, which x makes 8 * 8u, rounded; the sum with 1 rounds by 9u, so what is in parentheses is off by 73u. Times s,
    which is off by 6u itself, and rounded: 73u + 9 * 7u. In whatever order it is formed, s + y (1 - s) included, that is no more. A
    relative error of r is r / u' ulps at most of a type whose unit roundoff is u'. Rounding to 16 bits adds half an ulp of a number
    that is off by as much.
    """
    narrow = dtype == torch.float16
    of_y = 0.5 + 7 * 2.0**-24 / 2.0**-11 if narrow else 7.0
    return {"y": (of_y, 0.0), "derivative": (0.5 if narrow else 0.0, (1 + 2.0**-10) * 136 * 2.0**-24)}
