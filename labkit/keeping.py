"""`kept_a_layer`: what autograd keeps of one layer of a model for its backward pass, with each variant of its activation."""

from __future__ import annotations

from typing import Callable

import torch

from labkit import results
from labkit.report import keep
from labkit.share import BASELINE, Activation

Layer = Callable[[torch.Tensor, Activation], torch.Tensor]


def kept_a_layer(name: str, variants: dict[str, Activation], layer: Layer, x: torch.Tensor, title: str,
                 tokens: int, width: int) -> list[dict]:
    """Counts the bytes of the tensors that autograd keeps of a layer, for each token.

    name: what the table is called in results/. variants: {label: function of one tensor}. layer: a function of its input and
    an activation. x: (B, T, C), B even and T the sequences' length; a small C does. title: the table's head. tokens, width: of
    the model whose MiB a layer are to be shown.

    What does not grow with the number of tokens, as weights and their copies in 16 bits, is left out: it is the difference
    between all of x and its first half. Each storage counts once. It is counted, so that it is the same on every machine, but
    for what attention keeps by itself.

    Returns a row a variant and one for no activation: the tensors, their bytes a token and channel, those of them that are
    there for the activation, and the MiB of a layer of `width` channels with `tokens` tokens.
    """
    batch = x.shape[0]
    if batch % 2:
        raise ValueError(f"kept_a_layer: x has {batch} sequences; it takes an even number, of which half is left out")
    rows = []
    for label, activation in {**variants, BASELINE: lambda y: y}.items():
        grown = [large - small for large, small in zip(_kept(layer, activation, x), _kept(layer, activation, x[:batch // 2]),
                                                       strict=True) if large != small]
        each = sum(grown) / x[batch // 2:].numel()
        rows.append({"variant": label, "tensors": len(grown), "bytes a token and channel": round(each, 2),
                     "for the activation": each,
                     f"MiB a layer, {tokens:,} tokens of {width}": round(each * tokens * width / 2**20)})
    without = rows[-1]["for the activation"]
    for row in rows:
        row["for the activation"] = round(row["for the activation"] - without, 2)
    results.note("exact", title, ", ".join(f"{row['variant']}: {row['bytes a token and channel']:g}" for row in rows)
                 + " bytes a token and channel")
    keep({name: results.table_of(title, rows)})
    return rows


def _kept(layer: Layer, activation: Activation, x: torch.Tensor) -> list[int]:
    """The bytes of each storage that is kept, in the order in which they are kept first."""
    kept: dict[int, int] = {}
    alive = []  # a storage that is let go of may come again at the same address

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x.detach().clone().requires_grad_(), activation)  # a clone: part of a tensor has the storage of the whole
    return list(kept.values())
