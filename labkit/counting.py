"""`traffic`: how many operators a function runs, what they read and write, and what autograd keeps.

Counted, not timed: a dispatch mode sees every operator that PyTorch runs, forward and backward, with its tensors.
So the counts are the same on every machine, with a GPU or without.
"""

from __future__ import annotations

from typing import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit import results
from labkit.arguments import named
from labkit.report import keep


class _Count(TorchDispatchMode):
    """Counts operators that make or fill tensors; views and other bookkeeping move no data."""

    def __init__(self):
        super().__init__()
        self.operators = 0
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view and func.namespace != "prim" and "empty" not in func.name():
            self.operators += 1
            self.bytes += sum(t.nbytes for t in tree_leaves((args, kwargs, out)) if torch.is_tensor(t))
        return out


def traffic(name: str, variants: dict[str, Callable], x: torch.Tensor, title: str) -> list[dict]:
    """Counts, per element of x: operators run, bytes read and written, bytes kept for the backward pass.

    name: what the table is called in results/. variants: {label: function of one tensor}. x: any floating tensor; its
    dtype sets the bytes. title: the table's head.

    An operator is taken to read each of its inputs and write each of its outputs once, which is what an elementwise
    kernel does when nothing stays in a cache. Kept bytes count each storage once, and leave out parameters.
    Returns the rows: variant, operators forward, operators backward, bytes forward, bytes backward, bytes kept.
    """
    named("traffic", "variants", variants)
    if not torch.is_tensor(x):
        raise TypeError(f"traffic: x is {x!r}; it has to be a tensor")
    rows = []
    for label, function in variants.items():
        leaf = x.detach().clone().requires_grad_()
        kept: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), _Count() as forward:
            y = function(leaf)
        grad = torch.ones_like(y)
        with _Count() as backward:
            torch.autograd.grad(y, leaf, grad)
        rows.append({"variant": label, "operators forward": forward.operators,
                     "operators backward": backward.operators, "bytes forward": forward.bytes / x.numel(),
                     "bytes backward": backward.bytes / x.numel(), "bytes kept": sum(kept.values()) / x.numel()})
    for row in rows:
        results.note("exact", f"{title}, {row['variant']}",
                     f"{row['operators forward']} + {row['operators backward']} operators, "
                     f"{row['bytes forward']:.0f} + {row['bytes backward']:.0f} bytes an element")
    keep({name: results.table_of(title, rows)}, "Counted, an element")
    return rows
