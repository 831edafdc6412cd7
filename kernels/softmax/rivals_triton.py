"""Softmax and its gradient in Triton, the usual other way to write a fused kernel: a program has whole rows.

How many warps a program gets is tried out by Triton, once for a width.
"""

import torch
import triton
import triton.language as tl

ELEMENTS = 2048  # of a program, where that is more than one row

_tuned = triton.autotune([triton.Config({}, num_warps=warps) for warps in (2, 4, 8, 16)], key=["cols"])


@_tuned
@triton.jit
def _forward(x_ptr, y_ptr, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, BLOCK)[None, :]
    at, inside = r * cols + c, (r < rows) & (c < cols)
    x = tl.load(x_ptr + at, mask=inside, other=-float("inf")).to(COMPUTE)
    e = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
    tl.store(y_ptr + at, (e / tl.sum(e, axis=1, keep_dims=True)).to(y_ptr.dtype.element_ty), mask=inside)


@_tuned
@triton.jit
def _backward(grad_ptr, y_ptr, out_ptr, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, BLOCK)[None, :]
    at, inside = r * cols + c, (r < rows) & (c < cols)
    grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(COMPUTE)
    y = tl.load(y_ptr + at, mask=inside, other=0.0).to(COMPUTE)
    along = tl.sum(grad * y, axis=1, keep_dims=True)
    tl.store(out_ptr + at, (y * (grad - along)).to(out_ptr.dtype.element_ty), mask=inside)


def _launch(kernel, *tensors):
    rows, cols = tensors[0].shape
    if rows and cols:
        block = triton.next_power_of_2(cols)
        rows_each = max(ELEMENTS // block, 1)
        kernel[(triton.cdiv(rows, rows_each),)](
            *tensors, rows, cols, ROWS=rows_each, BLOCK=block,
            COMPUTE=tl.float64 if tensors[0].dtype == torch.float64 else tl.float32)
    return tensors[-1]


def forward(x):
    return _launch(_forward, x, torch.empty_like(x))


def backward(grad, y):
    return _launch(_backward, grad, y, torch.empty_like(y))
