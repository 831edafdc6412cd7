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
    {"shape": (4096,), "layout": "last input offset"},
    {"shape": (4096,), "layout": "outputs offset"},
    {"shape": (33, 65), "layout": "transposed"},
    {"shape": (2, 3, 9, 11), "layout": "channels_last"},
    {"shape": (65, 33), "layout": "strided"},
    {"shape": (17, 31), "layout": "expanded"},
]

# How often the function can be differentiated, by its options.
DIFFERENTIABLE = [({"save": "input"}, 2), ({"save": "derivative"}, 1)]

# Inputs are normal with this standard deviation, clamped to +-LARGEST; gradients lie in [-2, 2].
SPREAD, LARGEST = 2.5, 8.0


def tolerance(dtype, version, mode):
    """(ulps, absolute): an output may be off by ulps * ulp(reference) + absolute.

    Half an ulp of a 16-bit result is the rounding of the store; the arithmetic before it, in float32, may add a
    hundredth. `absolute` is what cancellation loses. With an error of e in tanh z, 1 + tanh z makes the result wrong by
    |x|/2 * e <= 4e, and 1 - tanh^2 z the derivative by |x|/2 * dz/dx * 2e <= 62e; gradients of up to 2 double that. v1
    to v5 have e = 2^-24, v6 the hardware's 2^-11. v7 cancels only near the zero of the derivative. In float64,
    e = 2^-53, and the reference cancels as well, since autograd forms 1 - s.
    """
    # exp's argument is up to 50 for x = -8 and rounded at that size: that is what v7 loses in the tail.
    wide = 128 if version == 7 else 16
    ulps = 0.51 if dtype in (torch.float16, torch.bfloat16) else wide
    if mode == "backward_saved":
        return 1 if dtype in (torch.float32, torch.float64) else 0.51, 0.0
    derivative = mode != "forward"
    unit = 2.0**-53 if dtype == torch.float64 else 2.0**-24
    if version == 7:
        return ulps, (248 if dtype == torch.float64 else 8) * unit if derivative else 0.0
    error = 2.0**-11 if version == 6 and dtype != torch.float64 else unit
    return ulps, ((248 if dtype == torch.float64 else 124) if derivative else 4) * error
