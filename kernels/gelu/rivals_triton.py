"""GeLU and its gradient in Triton, the usual other way to write a fused kernel."""

import torch
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (1024, 2048, 4096) for warps in (4, 8)]


@triton.jit
def _sigmoid_2z(x):
    return 1.0 / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))


@triton.autotune(CONFIGS, key=["n"])
@triton.jit
def _forward(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
    tl.store(y_ptr + at, (x * _sigmoid_2z(x)).to(y_ptr.dtype.element_ty), mask=at < n)


@triton.autotune(CONFIGS, key=["n"])
@triton.jit
def _backward(grad_ptr, x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    grad = tl.load(grad_ptr + at, mask=at < n).to(tl.float32)
    x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
    s = _sigmoid_2z(x)
    slope = 1.5957691216057308 * (1.0 + 3 * 0.044715 * x * x)
    tl.store(out_ptr + at, (grad * s * (1.0 + x * (1.0 - s) * slope)).to(out_ptr.dtype.element_ty), mask=at < n)


def _grid(n):
    return lambda config: (triton.cdiv(n, config["BLOCK"]),)


def forward(x):
    y = torch.empty_like(x)
    _forward[_grid(x.numel())](x, y, x.numel())
    return y


def backward(grad, x):
    out = torch.empty_like(x)
    _backward[_grid(x.numel())](grad, x, out, x.numel())
    return out


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return forward(x)

    @staticmethod
    def backward(ctx, grad):
        return backward(grad, *ctx.saved_tensors)


apply = _Gelu.apply
