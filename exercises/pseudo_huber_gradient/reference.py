"""What the exercise has to compute. float64 squares every finite x of the types below without overflow, and 1 / inf is 0."""

import torch


def derivative(x):
    """x / sqrt(1 + x^2) of a float64 tensor; 1 and -1 where x is infinite."""
    return torch.where(x.isinf(), x.sign(), x / torch.sqrt(1 + x * x))


MODES = {"backward": (("grad", "x"), ("grad_x",), lambda grad, x: (grad * derivative(x),))}
DTYPES = (torch.bfloat16, torch.float32)
CASES = [{"shape": (300,)}]
DIFFERENTIABLE = []
SPREAD, LARGEST = 2.5, 8.0


def tolerance(dtype, version, mode):
    """(ulps, 0). u = 2^-24. A reciprocal, a square of it, which doubles its error, and the sum are off by 4u, the root by
    half of that and its own u, the quotient by one more, and the product with grad by another: 5u of the result, less than 5
    ulp. A hypotenuse by its own function is within 3 ulp, 6u, and the rest 2u: 8 ulp allow that too. A 16-bit result is the
    rounding of such a number: half an ulp, and 8u / 2^-8 of one, less than a thousandth.
    """
    return (0.501 if dtype == torch.bfloat16 else 8.0), 0.0
