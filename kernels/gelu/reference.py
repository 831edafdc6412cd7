"""What the GeLU kernels must compute: plain PyTorch in float64, and the cases that `labkit.check` runs.

gelu(x) = x/2 (1 + tanh z) with z = sqrt(2/pi) (x + 0.044715 x^3), the form that F.gelu(x, approximate="tanh")
computes (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016). Since (1 + tanh z)/2 = sigmoid(2z), the
reference uses the sigmoid: 1 + tanh z loses every digit in the negative tail, in float64 as well. The derivative is
autograd's, so that it owes nothing to the formula in the kernel.
"""

import math

import torch


def gelu(x):
    """gelu(x) for a float64 tensor of any shape."""
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def gelu_derivative(x):
    """gelu'(x) for a float64 tensor of any shape."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(gelu(x).sum(), x)[0]


# The operator's modes: the names of their inputs and outputs, and what the outputs must be.
MODES = {
    "forward": (("x",), ("y",), lambda x: (gelu(x),)),
    "forward_derivative": (("x",), ("y", "derivative"), lambda x: (gelu(x), gelu_derivative(x))),
    "backward": (("grad", "x"), ("grad_x",), lambda grad, x: (grad * gelu_derivative(x),)),
    "backward_saved": (("grad", "derivative"), ("grad_x",), lambda grad, derivative: (grad * derivative,)),
}

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# A block covers 128, 256, 2048 or 4096 elements, depending on version and dtype, a vector 2, 4 or 8: sizes just
# under, at and just over each, a long odd one that makes a grid-stride loop turn, none at all, and layouts.
CASES = [
    *({"shape": (n,)} for n in (0, 1, 7, 8, 9, 127, 128, 129, 255, 256, 257, 2047, 2048, 2049, 4095, 4096, 4097)),
    {"shape": (400_009,)},
    {"shape": (3, 5, 7)},
    {"shape": ()},
    {"shape": (4096,), "layout": "offset"},
    {"shape": (4097,), "layout": "offset"},
    {"shape": (33, 65), "layout": "transposed"},
    {"shape": (2, 3, 9, 11), "layout": "channels_last"},
    {"shape": (65, 33), "layout": "strided"},
    {"shape": (17, 31), "layout": "expanded"},
]

# How often the function can be differentiated, by its options.
DIFFERENTIABLE = [({"save": "input"}, 2), ({"save": "derivative"}, 1)]

# Inputs are normal with this standard deviation, clamped to +-LARGEST; gradients lie in [-2, 2].
SPREAD, LARGEST = 2.5, 8.0


def tolerance(dtype, version):
    """(ulps, absolute): an output may be off by ulps * ulp(reference) + absolute.

    Half an ulp of a 16-bit result is the rounding of the store; the arithmetic before it, in float32, may add a
    hundredth. `absolute` is what float32 (or float64) arithmetic loses to cancellation: in 1 + tanh z for v1 to v5,
    whose error of 2^-24 is scaled by up to |x|/2 * dz/dx * |grad| = 4 * 7.7 * 2; with v7 it remains only near the zero
    of the derivative, where 1 + x (1 - s) dz/dx cancels. In float64 the reference itself is no better: autograd
    forms 1 - s. v6 carries the hardware tanh's error of 2^-11 instead; it
    is there to be compared.
    """
    if dtype == torch.float64:
        return 8, 1e-13 if version < 7 else 3e-14
    ulps = 4 if dtype == torch.float32 else 0.51
    if version == 6:
        return ulps, 4 * 7.7 * 2 * 2.0**-11
    return ulps, (4 * 7.7 * 2 if version < 6 else 8) * 2.0**-24
