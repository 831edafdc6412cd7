"""What the exercise has to compute."""

import torch
import torch.nn.functional as F


def gradient(grad, y):
    """The gradient of x where y = elu(x), from that of y: autograd's, at the x that has this y."""
    with torch.enable_grad():
        x = torch.where(y > 0, y, torch.log1p(y)).requires_grad_()
        return torch.autograd.grad(F.elu(x), x, grad)[0]


MODES = {"forward": (("x",), ("y",), lambda x: (F.elu(x),)),
         "backward": (("grad", "y"), ("grad_x",), lambda grad, y: (gradient(grad, y),))}
DTYPES = (torch.float32, torch.bfloat16)
CASES = [{"shape": (3, 100)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 1.0, 3.0


def given(mode, inputs):
    """The y of the backward pass is one that the forward pass can give."""
    return [inputs[0], F.elu(inputs[1])] if mode == "backward" else inputs


def tolerance(dtype, version, mode):
    """(ulps, absolute).

    forward: expm1 is within 1 ulp of float32. backward: y + 1 rounds, and so does the product, a relative error of 2u, u = 2^-24,
    which is 2 ulps at most; y itself is given, whatever it was rounded from. The reference's way to x and back is in float64,
    and off by less than 2^-48 of a gradient of at most 2. Of a 16-bit type, with u' = 2^-8, 2u is 2^-15, and the store adds half an
    ulp.
    """
    return (2.0 if dtype == torch.float32 else 0.5 + 2.0**-15), 2.0**-47
