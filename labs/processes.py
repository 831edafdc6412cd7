"""The processes that train one model together: who they are, and how the model is shared out among them.

torchrun starts them and says in their environment who is who. A process that it did not start is alone, and is a group of one,
so that nothing else need tell the two cases apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
from typing import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

WAYS = "plain", "ddp", "fsdp"


@dataclasses.dataclass(frozen=True)
class Processes:
    """This process (rank, from 0), how many there are, and where this one computes."""

    rank: int
    count: int
    device: torch.device

    def mean(self, value: torch.Tensor) -> float:
        """The mean of a 0-d tensor over all processes; each must ask."""
        total = value.detach().to(torch.float64, copy=True)  # the sum takes its place
        dist.all_reduce(total)
        return total.item() / self.count


@contextlib.contextmanager
def joined(kind: str) -> Iterator[Processes]:
    """The group of all processes that torchrun started, by NCCL on GPUs and by gloo on CPUs. kind: "cuda" or "cpu".

    Within, a model is shared out in a function that is over before the group ends: what shares it must be gone by then.

    Raises ValueError where this host has fewer GPUs than processes.
    """
    rank, count, local = (int(os.environ.get(name, default))
                          for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
    device = torch.device(kind)
    if kind == "cuda":
        if local >= torch.cuda.device_count():
            raise ValueError(f"process {local} of this host has no GPU of its own: there are {torch.cuda.device_count()}. "
                             "Start torchrun with --nproc-per-node=gpu")
        device = torch.device(kind, local)
        torch.cuda.set_device(device)  # kernels that are launched without a device guard go there, and so do NCCL's
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    # gloo beside NCCL: what checkpoints agree on lies in the CPU's memory.
    dist.init_process_group("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo",
                            device_id=device if kind == "cuda" else None, **alone)
    yield Processes(rank, count, device)
    # DDP's reducer, in a cycle with its model, would outlive the group. Whoever frees it then holds the interpreter's lock and
    # waits for a thread of gloo, which waits for that lock.
    gc.collect()
    # Not after an exception: the others may wait for this process, and this one would wait for them.
    dist.destroy_process_group()


def shared_out(model: nn.Module, way: str, processes: Processes, dtype: torch.dtype | None) -> nn.Module:
    """The model as all processes train it. way: one of WAYS.

    "plain": as it is, for one process. "ddp": every process holds all of it, and gradients are averaged while the backward
    pass still runs. "fsdp" (FSDP2): every process holds its part of each weight, gradient and moment of the optimizer, and
    fetches a block's weights for the time of the block. dtype: the 16-bit type that autocast computes in, or None; weights are
    then fetched in it, in half of the bytes. model: a Transformer.
    """
    if way not in WAYS:
        raise ValueError(f"the way is {way!r}; there are {', '.join(WAYS)}")
    if way == "plain":
        if processes.count > 1:
            raise ValueError(f'{processes.count} processes would each train a model of its own; take the way "ddp" or "fsdp"')
        return model
    if way == "ddp":
        ids = [processes.device.index] if processes.device.type == "cuda" else None
        # As views the gradients lie in the buckets that are sent, and are not there twice.
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
    mesh = init_device_mesh(processes.device.type, (processes.count,))
    # Weights of products are sent in the type that autocast would make of them anyway; gradients are added up in float32.
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype and torch.float32, cast_forward_inputs=False)
    # Norms compute in float32. They are small: all of them go around at once.
    fully_shard([norm for block in model.blocks for norm in (block.norm_attention, block.norm_mlp)], mesh=mesh)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh)  # the rest, in float32: embeddings and the last norm
