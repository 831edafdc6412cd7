"""Error in units in the last place (ULP), over every finite input of a 16-bit type.

One ULP is the distance between neighbouring numbers of a type at the size of the exact result. A perfectly rounded
result is off by at most 0.5. There are only 65,536 numbers of 16 bits, so the whole function can be checked.
"""

from __future__ import annotations

from typing import Callable

import torch

from labkit import machine, results
from labkit.arguments import named, several
from labkit.modes import usual
from labkit.report import show_table

# dtype: (bits of precision, exponent of the smallest normal number)
_FORMATS = {torch.float16: (11, -14), torch.bfloat16: (8, -126), torch.float32: (24, -126), torch.float64: (53, -1022)}


def type_name(dtype: torch.dtype) -> str:
    """A dtype as tables name it: "float16"."""
    return str(dtype).removeprefix("torch.")


def spacing(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One ULP of `dtype` at each value of `exact` (float64); below the normal numbers, the smallest denormal."""
    precision, lowest = _FORMATS[dtype]
    exponent = torch.frexp(exact.double()).exponent.long() - 1  # |exact| = m * 2^exponent, 1 <= m < 2
    exponent = torch.where(exact == 0, lowest, exponent).clamp(min=lowest) - (precision - 1)
    return torch.ldexp(torch.ones_like(exact, dtype=torch.float64), exponent)


def error_in_ulp(out: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """|out - exact| in ULP of out's dtype (float64 tensor); inf where out is NaN and exact is not."""
    error = (out.double() - exact).abs() / spacing(exact, out.dtype)
    return torch.where(out.isnan() & ~exact.isnan(), torch.inf, error)


def every_finite(dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """All finite numbers of float16 (63,488) or bfloat16 (65,280), in rising order, with both zeros."""
    if dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"dtype is {dtype}; only float16 and bfloat16 are small enough to try every number")
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    finite = every[every.isfinite()]
    return finite[finite.double().argsort(stable=True)].to(device)


@usual
def ulp(name: str, variants: dict[str, Callable], reference: Callable, title: str,
        dtypes: tuple = (torch.bfloat16, torch.float16), drawn: tuple[str, ...] | None = None) -> list[dict]:
    """Runs every variant on every finite 16-bit input and shows its largest error against the reference.

    name: what the table is called in results/. variants: {label: function of one tensor}. reference: the exact
    function, on float64. title: what is computed, for the table's head. drawn: the variants whose error over x is kept for
    a figure (all by default), for the first of `dtypes`, as the largest in each of 180 bins of [-12, 6].

    Returns the rows, one a variant, with three columns a dtype: the largest error in ULP, the input that has it, and
    how many outputs are NaN (those are not part of the largest error). The values are exact, so they are shown for the
    backend at hand, whichever it is.
    """
    named("ulp", "variants", variants)
    dtypes = several("ulp", "dtypes", dtypes)
    if drawn is not None and (unknown := [label for label in several("ulp", "drawn", drawn) if label not in variants]):
        raise ValueError(f"ulp: drawn has {unknown[0]!r}; the variants are {', '.join(variants)}")
    rows = {label: {"variant": label} for label in variants}
    series, edges = {}, torch.linspace(-12, 6, 181, dtype=torch.float64)
    for dtype in dtypes:
        x = every_finite(dtype, machine.device())
        exact = reference(x.double())
        short = type_name(dtype)
        for label, function in variants.items():
            out = function(x)
            if out.dtype != dtype or out.shape != x.shape:
                raise ValueError(f"{label} gave {out.dtype} {tuple(out.shape)} for {dtype} {tuple(x.shape)}")
            nan = out.isnan()
            error = torch.where(nan, 0.0, error_in_ulp(out, exact))
            worst = error.argmax()
            rows[label] |= {f"{short} ULP": round(error[worst].item(), 4), f"{short} at": x[worst].item(),
                            f"{short} NaN": int(nan.sum())}
            results.note("exact", f"{title}, {label}, {short}", f"at most {error[worst].item():.2f} ULP"
                         + (f", NaN for {int(nan.sum())} inputs" if nan.any() else ""))
            if dtype == dtypes[0] and (drawn is None or label in drawn):
                series[label] = _largest_by_bin(x.double(), error, edges.to(x.device))
    table = results.table_of(title, list(rows.values()))
    results.add(name, table)
    centres = ((edges[1:] + edges[:-1]) / 2).tolist()
    results.add(f"{name}_curves", {"kind": "curve", "title": f"{title}, {type_name(dtypes[0])}",
                                   "x": {"label": "x", "values": centres},
                                   "y": {"label": "error in ULP", "scale": "log"}, "series": series})
    show_table(table)
    return list(rows.values())


def _largest_by_bin(x: torch.Tensor, error: torch.Tensor, edges: torch.Tensor) -> list[float]:
    bin_of = torch.bucketize(x, edges) - 1
    inside = (bin_of >= 0) & (bin_of < len(edges) - 1)
    largest = torch.zeros(len(edges) - 1, dtype=torch.float64, device=x.device)
    largest.scatter_reduce_(0, bin_of[inside], error[inside], "amax")
    return [round(value, 3) for value in largest.tolist()]
