"""`at_the_edges`: what an activation makes of the largest and the least numbers of a type, of infinities and of NaN."""

from __future__ import annotations

import math
from typing import Callable

import torch

from labkit import machine, results
from labkit.arguments import named
from labkit.modes import usual
from labkit.precision import every_finite, type_name
from labkit.report import keep

Activation = Callable[[torch.Tensor], torch.Tensor]
NONE = "none"  # what a cell says where no input has the fault


@usual
def at_the_edges(name: str, variants: dict[str, Activation], title: str) -> list[dict]:
    """Runs each variant, and autograd's gradient of it, where a type ends; shows and keeps the table.

    name: what the table is called in results/. variants: {label: differentiable function of one tensor}. title: the table's
    head.

    Returns a row a case, with a column a variant: the least positive input, of all numbers of a 16-bit type, whose gradient
    is NaN or infinite; the gradient at 1 when 1e-8 comes in; the result of a denormal input; the least result that is not 0
    in the negative tail; and the results and gradients at infinities and NaN. A cell is what this machine computed: a
    number, or the words inf, -inf, NaN and none.
    """
    named("at_the_edges", "variants", variants)
    cases: list[tuple[str, Callable[[Activation], float | str]]] = []
    for dtype in (torch.float16, torch.bfloat16):
        kind = type_name(dtype)
        cases += [(f"{kind}: least x > 0 whose gradient is not finite", lambda f, d=dtype: _first_wild_gradient(f, d)),
                  (f"{kind}: gradient at 1, for 1e-8 from above", lambda f, d=dtype: _gradient(f, 1.0, d, 1e-8))]
    # A power of two below the least normal number: half of it is a number of the type as well.
    for dtype, power in ((torch.float16, -20), (torch.bfloat16, -130), (torch.float32, -130)):
        cases.append((f"{type_name(dtype)}: gelu(2^{power}), denormal", lambda f, d=dtype, p=power: _value(f, 2.0**p, d)))
    cases.append(("float32: least result not 0 in the tail", _least_in_tail))
    for x in (math.inf, -math.inf, math.nan):
        cases.append((f"float16: result at {_said(x)}", lambda f, x=x: _value(f, x, torch.float16)))
        cases.append((f"float16: gradient at {_said(x)}", lambda f, x=x: _gradient(f, x, torch.float16, 1.0)))
    rows = [{"case": case, **{label: _said(measured(function)) for label, function in variants.items()}}
            for case, measured in cases]
    results.note("exact", title, f"{len(cases)} cases, {len(variants)} variants")
    keep({name: results.table_of(title, rows)})
    return rows


def _first_wild_gradient(function: Activation, dtype: torch.dtype) -> float | str:
    x = every_finite(dtype, machine.device())
    x = x[x > 0]
    wild = ~_gradients(function, x, torch.ones_like(x)).isfinite()
    return x[wild].min().item() if wild.any() else NONE


def _gradient(function: Activation, x: float, dtype: torch.dtype, incoming: float) -> float:
    at = torch.tensor([x], dtype=dtype, device=machine.device())
    return _gradients(function, at, torch.full_like(at, incoming)).item()


def _gradients(function: Activation, x: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x), x, incoming)[0]


def _value(function: Activation, x: float, dtype: torch.dtype) -> float:
    return function(torch.tensor([x], dtype=dtype, device=machine.device())).item()


def _least_in_tail(function: Activation) -> float | str:
    """The least magnitude but 0 among the results for x in [-20, -1], where the function falls below every float32."""
    size = function(torch.linspace(-20, -1, 20_001, device=machine.device())).abs()
    return size[size > 0].min().item() if (size > 0).any() else NONE


def _said(value: float | str) -> float | str:
    """A number as it is; what JSON has no number for in words."""
    if isinstance(value, str) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
