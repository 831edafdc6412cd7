"""What torch.autocast and GradScaler do with a custom operator, seen by running it under them."""

from __future__ import annotations

import itertools
from typing import Callable

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit import machine, results
from labkit.arguments import loaded
from labkit.modes import usual
from labkit.operator import Operator
from labkit.precision import type_name
from labkit.report import keep

REGISTERED = torch.float16  # the type that the registered operator asks for
NORMAL, OUTLIER = 1.0, 1e4  # how large the inputs of a step are
STEPS = (NORMAL, NORMAL, OUTLIER, NORMAL, NORMAL)
COPIES = "labkit_autocast"  # the namespace of registered copies
_number = itertools.count()


class _Seen(TorchDispatchMode):
    """The types of the tensors that a GeLU gets: our operator, a copy of it, or PyTorch's. It looks below autocast."""

    def __init__(self, gelu: Operator):
        super().__init__()
        self.namespaces, self.dtypes = (gelu.namespace, COPIES), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace in self.namespaces or func.name() == "aten::gelu":
            self.dtypes += [t.dtype for t in tree_leaves(args) if torch.is_tensor(t)]
        return func(*args, **(kwargs or {}))


@usual
def under_autocast(name: str, gelu: Operator) -> list[dict]:
    """Calls GeLU with a float32 tensor inside torch.autocast, in five ways and for two types; shows and keeps the table.

    name: what the table is called in results/. gelu: the operator, from `labkit.load("gelu")`. The ways: our operator as it
    is; the same on the result of a Linear, as in a model; a copy with `torch.library.register_autocast` for REGISTERED; a
    function that casts to autocast's type by itself; and PyTorch's F.gelu.

    Returns a row for each way and type: the type that the kernel gets, that of the result, and that of x's gradient.
    """
    loaded("under_autocast", "gelu", gelu)
    device = machine.device()
    kind = device.type
    copy = registered(gelu, kind, REGISTERED)
    linear = nn.Linear(8, 8, device=device)

    def casting(x: torch.Tensor) -> torch.Tensor:
        cast = torch.is_autocast_enabled(kind) and x.dtype != torch.float64  # which PyTorch's own operators leave alone too
        return gelu(x.to(torch.get_autocast_dtype(kind)) if cast else x)

    ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "ours": gelu, "F.gelu": gelu.rivals.native, "ours after a Linear": lambda x: gelu(linear(x)),
        f"ours registered for {type_name(REGISTERED)}": copy, "ours with a cast": casting}
    rows = []
    for label, function in ways.items():
        for dtype in (torch.float16, torch.bfloat16):
            x = torch.randn(4, 8, device=device, requires_grad=True)
            with _Seen(gelu) as seen, torch.autocast(kind, dtype):
                y = function(x)
            y.float().sum().backward()
            rows.append({"called": f"{label}, under {type_name(dtype)}", "kernel gets": type_name(seen.dtypes[0]),
                         "result": type_name(y.dtype), "gradient of x": type_name(x.grad.dtype)})
    results.note("exact", "GeLU under autocast", f"{len(rows)} calls")
    keep({name: results.table_of("GeLU with a float32 input under autocast", rows)})
    return rows


def registered(gelu: Operator, kind: str, dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """GeLU as an operator of its own, for which `torch.library.register_autocast` asks for `dtype` on devices of a kind."""
    def run(x):
        return gelu.ops.forward(x, gelu.latest)

    def backward(ctx, grad):
        return gelu.ops.backward(grad, *ctx.saved_tensors, gelu.latest)

    # A registration lasts as long as the process, so each copy has a name of its own.
    wrapped = torch.library.custom_op(f"{COPIES}::gelu{next(_number)}", run, mutates_args=(), schema="(Tensor x) -> Tensor")
    wrapped.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    torch.library.register_autocast(wrapped, kind, dtype)
    return wrapped


@usual
def scaled_steps(name: str, gelu: Operator) -> list[dict]:
    """Trains a small float16 model with our GeLU for five steps with a GradScaler; the third has inputs that are too large.

    name: what the table is called in results/. gelu: the operator, from `labkit.load("gelu")`.
    Returns a row a step: the scale before it, whether all gradients were finite, whether the weights changed, and the scale
    after it. The scaler doubles its scale after two good steps here, instead of 2000.
    """
    loaded("scaled_steps", "gelu", gelu)
    device = machine.device()
    torch.manual_seed(0)
    first, second = nn.Linear(8, 16, device=device), nn.Linear(16, 1, device=device)
    weights = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.SGD(weights, lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**10, growth_interval=2)
    x = torch.randn(32, 8, device=device)
    rows = []
    for step, size in enumerate(STEPS):
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.float16):
            loss = second(gelu(first(x * size))).float().square().mean()
        scale, before = scaler.get_scale(), [p.detach().clone() for p in weights]
        scaler.scale(loss).backward()
        finite = all(p.grad.isfinite().all().item() for p in weights)
        scaler.step(optimizer)
        scaler.update()
        changed = any(not torch.equal(p, old) for p, old in zip(weights, before))
        rows.append({"step": step, "inputs": "too large" if size == OUTLIER else "normal", "scale before": scale,
                     "gradients finite": finite, "weights changed": changed, "scale after": scaler.get_scale()})
    skipped = sum(not row["weights changed"] for row in rows)
    results.note("exact", "steps with a GradScaler", f"{skipped} of {len(rows)} skipped")
    keep({name: results.table_of("Five steps in float16 with a GradScaler", rows)})
    return rows
