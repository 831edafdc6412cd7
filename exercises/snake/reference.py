"""What the exercise has to compute. The gradient is autograd's, so that it owes nothing to a formula."""

import torch


def snake(x):
    return x + x.sin() ** 2


def gradient(grad, x):
    """The gradient of x where y = snake(x), from that of y."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(snake(x), x, grad)[0]


MODES = {"forward": (("x",), ("y",), lambda x: (snake(x),)),
         "backward": (("grad", "x"), ("grad_x",), lambda grad, x: (gradient(grad, x),))}
DTYPES = (torch.float32, torch.bfloat16)
CASES = [{"shape": (300,)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 3.0, 10.0


def tolerance(dtype, version, mode):
    """(ulps, absolute).

    u is 2^-24. A sine or cosine is within 2 ulp and at most 1, so it is off by 4u at most, and a product of two by 9u. forward
    adds that to x, and rounds. backward has 1 + 2 sin(x) cos(x), or the sine of 2x, which is off by less: 18u and the sum's 2u,
    times a gradient of at most 2, and rounds. Rounding is half an ulp, of a 16-bit type or of float32.
    """
    return 0.5, (9 if mode == "forward" else 42) * (1 + 2.0**-8) * 2.0**-24
