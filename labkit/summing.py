"""How wide a sum has to be: `accumulated` adds up in narrow and in wide types, `matmul_errors` multiplies in tf32."""

from __future__ import annotations

import contextlib
import io
import math
from typing import Callable, Iterator

import torch

from labkit import machine, results
from labkit.arguments import loaded
from labkit.mutants import mutant
from labkit.operator import Operator
from labkit.precision import type_name
from labkit.report import keep, show_recorded

TRIALS = 16  # sums of each length, whose errors are averaged
LONGEST_CHAIN, LONGEST_TREE, LONGEST_ROW = 1 << 16, 1 << 20, 1 << 22
SCALE = 2.0**-6  # numbers are uniform in [0, SCALE), so that the longest sum fits into float16
VERSION = 3
# The sum of a thread, as someone writes it who thinks of T as the type to compute in.
OLD = "    part[t] = sum_of_thread(x, cols);\n"
NEW = """    T sum = to_element<T>(0);
    for (int64_t c = t; c < cols; c += THREADS) sum = to_element<T>(to_compute(sum) + to_compute(x[blockIdx.x * cols + c]));
    part[t] = to_compute(sum);
"""


def accumulated(name: str, row_sum: Operator) -> list[dict]:
    """Adds up n random numbers of one size in several types and orders, then with our kernel and with a narrow one.

    name: what the curve over n is called in results/: the error of a sum, relative to the float64 sum of the same rounded
    numbers, as the root mean square of TRIALS sums. row_sum: the operator, from `labkit.load("row_sum")`. <name>_kernel is
    the same for its version 3, and for a mutant of that whose threads add in the element type, on the same backend;
    <name>_rows is its table.

    "One after another" rounds to the type after every addition, and so does "as a tree", which adds the second half to the
    first, then the second quarter to the first, and so on. The first curve is PyTorch's arithmetic on the CPU, and the same
    everywhere; its chains end at LONGEST_CHAIN, since each addition is a call. Returns the rows of the table, one a length,
    with the errors in per cent.
    """
    loaded("accumulated", "row_sum", row_sum)
    drawn = _numbers(TRIALS, LONGEST_TREE)
    lengths = [1 << k for k in range(4, LONGEST_TREE.bit_length())]
    series = {}
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x, kind = drawn.to(dtype), type_name(dtype)
        exact = {n: x[:, :n].double().sum(1) for n in lengths}
        chain = running_sums(x[:, :LONGEST_CHAIN], dtype)
        series[f"{kind}, one after another"] = [relative_error(chain[n], exact[n]) if n in chain else None for n in lengths]
        if dtype != torch.float32:
            series[f"{kind}, as a tree"] = [relative_error(tree_sum(x[:, :n]), exact[n]) for n in lengths]
        if dtype == torch.float16:
            wide = running_sums(x[:, :LONGEST_CHAIN], torch.float32)
            series["float16 numbers, added in float32"] = [
                relative_error(wide[n].to(dtype), exact[n]) if n in wide else None for n in lengths]
    keep({name: _curve("Error of a sum of n numbers", lengths, series)}, results.EXACT)

    with contextlib.redirect_stdout(io.StringIO()):  # what it builds
        narrow = mutant("row_sum", VERSION, OLD, NEW, backend=row_sum.backend)
    drawn = _numbers(TRIALS // 4, LONGEST_ROW).to(row_sum.device)
    lengths = [1 << k for k in range(8, LONGEST_ROW.bit_length(), 2)]
    kernels = {f"{type_name(dtype)}, {label}": [_kernel_error(operator, drawn[:, :n].to(dtype)) for n in lengths]
               for dtype in (torch.float16, torch.bfloat16)
               for label, operator in (("float32 sum", row_sum), ("sum in its own type", narrow))}
    rows = [{"n": n, **{label: round(100 * errors[k], 4) for label, errors in kernels.items()}} for k, n in enumerate(lengths)]
    keep({f"{name}_kernel": _curve(f"Error of row_sum v{VERSION}, its sum in float32 and in its own type", lengths, kernels),
          f"{name}_rows": results.table_of(f"Error of row_sum v{VERSION}, %", rows)})
    results.note("exact", "sums of n numbers", f"{len(series)} ways to add, {len(kernels)} kernels")
    return rows


def matmul_errors(name: str, size: int = 4096) -> list[dict]:
    """Multiplies two matrices with float32 and with tf32 inputs, and with inputs rounded to 16 bits; keeps the table.

    name: what the table is called in results/. size: the matrices are size x size, of standard normal numbers. Inputs of 16
    bits are multiplied in float32, and the product stays in it, so that the rows differ in the rounding of the inputs alone.
    Returns a row a way: the error against float64, as the norm of the difference over the norm of the product. tf32 is a GPU's:
    without one the recorded table is shown and [] returned. A GPU before compute capability 8.0 computes that row in float32.
    torch's setting is put back afterwards.
    """
    title = f"Error of a product of {size} × {size} matrices"
    if machine.backend() != "cuda":
        return show_recorded([name], title)
    generator = torch.Generator(machine.device()).manual_seed(0)
    a, b = torch.randn(2, size, size, generator=generator, device=machine.device()).unbind()
    exact = a.double() @ b.double()
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "float32": lambda: _product(a, b, "ieee"), "tf32": lambda: _product(a, b, "tf32"),
        **{type_name(dtype): lambda d=dtype: _product(a.to(d).float(), b.to(d).float(), "ieee")
           for dtype in (torch.float16, torch.bfloat16)}}
    rows = [{"inputs": label, "relative error": ((multiply().double() - exact).norm() / exact.norm()).item()}
            for label, multiply in ways.items()]
    results.note("exact", title, f"{len(rows)} types")
    keep({name: results.table_of(title, rows)})
    return rows


def running_sums(x: torch.Tensor, dtype: torch.dtype) -> dict[int, torch.Tensor]:
    """The sums of the first 1, 2, 4, ... columns of x, one column after another, rounded to `dtype` after each addition."""
    total, kept = torch.zeros(len(x), dtype=dtype), {}
    for n, column in enumerate(x.to(dtype).T.contiguous(), 1):
        total += column
        if n & (n - 1) == 0:
            kept[n] = total.clone()
    return kept


def tree_sum(x: torch.Tensor) -> torch.Tensor:
    """The sum of each row, of a length that is a power of two: halves are added, rounded to x's dtype each time."""
    while x.shape[1] > 1:
        left, right = x.chunk(2, dim=1)
        x = left + right
    return x[:, 0]


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The root mean square of the relative errors of `found` against `exact` (float64)."""
    return ((found.double() - exact) / exact).square().mean().sqrt().item()


def _kernel_error(operator: Operator, x: torch.Tensor) -> float:
    x = x.contiguous()
    return relative_error(operator.ops.forward(x, VERSION), x.double().sum(1))


def _numbers(rows: int, columns: int) -> torch.Tensor:
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(0)) * SCALE


def _product(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    with matmul_precision(precision):
        return a @ b


@contextlib.contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Within, float32 products on the GPU are computed so: "ieee" or "tf32"."""
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    setting.fp32_precision = precision
    try:
        yield
    finally:
        setting.fp32_precision = before


def _curve(title: str, lengths: list[int], series: dict[str, list]) -> dict:
    ticks = [n for n in lengths if int(math.log2(n)) % 4 == 0]
    # A sum that is exact has no place on a logarithmic axis.
    return {"kind": "curve", "title": title, "y": {"label": "relative error", "scale": "log"},
            "x": {"label": "n", "scale": "log", "values": lengths, "ticks": ticks,
                  "tick_labels": [f"{n:,}" for n in ticks]},
            "series": {label: [error or None for error in errors] for label, errors in series.items()}}
