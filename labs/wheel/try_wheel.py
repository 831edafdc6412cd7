"""Runs an installed gelu_op and prints two lines of JSON: what it runs with, and what came of it.

`labkit.try_wheels` starts it where neither a compiler nor this repository is found. It needs torch and gelu_op.
"""

import json
import math
import platform
import sys
import time

import torch


def exact_gelu(x):
    return x / (1 + torch.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def error_in_ulp(out, exact):
    """The largest error of a bfloat16 result, in units of its last place: 8 bits of precision, 2^-126 the smallest."""
    exponent = torch.frexp(exact).exponent.clamp(min=-125) - 8
    return ((out.double() - exact).abs() / torch.ldexp(torch.ones_like(exact), exponent)).max().item()


def first_call(device):
    """The package and the seconds that its import and first result took; CUDA's own start is not among them."""
    x = torch.ones(1, device=device)
    start = time.perf_counter()
    import gelu_op

    gelu_op.gelu(x).item()
    return gelu_op, time.perf_counter() - start


sys.modules["labkit"] = None  # an import of it fails: the package has to do without
cuda = bool(torch.version.cuda) and torch.cuda.is_available()
print(json.dumps({"torch": torch.__version__, "python": platform.python_version(),
                  "device": torch.cuda.get_device_name() if cuda else "the CPU"}), flush=True)
device = torch.device("cuda" if cuda else "cpu")
gelu_op, seconds = first_call(device)

# Every bfloat16 number from -8 to 8; the exact gradient is autograd's, in float64.
every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
x = every[every.abs() <= 8].to(device).requires_grad_()
wide = x.detach().double().requires_grad_()
y, exact = gelu_op.gelu(x), exact_gelu(wide)
y.sum().backward()
exact.sum().backward()
torch.library.opcheck(torch.ops.gelu_op.forward.default, (x.detach()[:64].requires_grad_(), gelu_op.built["version"]))
print(json.dumps({"forward": error_in_ulp(y.detach(), exact.detach()), "gradient": error_in_ulp(x.grad, wide.grad),
                  "seconds": seconds}))
