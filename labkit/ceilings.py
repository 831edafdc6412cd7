"""What this GPU can do at the most, measured: bytes a second that a copy moves, and operations a second in each type.

The arithmetic of the SMs is measured by the kernels of kernels/peaks.cu, which do nothing but fused multiply-adds, that of the
tensor cores by a large product of matrices, so a ceiling is what a program has reached, and not what a data sheet says.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from labkit import REPOSITORY, machine, toolchain
from labkit.memory import LAUNCH_SECONDS, launch_seconds
from labkit.sources import PEAKS
from labkit.timing import timed

CHAINS = 8  # sums a thread, as in kernels/peaks.cu
THREADS = 1024
COPIED = 1 << 29  # bytes that a copy reads, where the GPU has 16 times as much
MATRIX = 8192  # rows and columns of a product on the tensor cores
# {type: (1 as it lies in memory, numbers in it, torch's type of what is added up, the sum at which adding 1 changes no more)}
_ONES = {"float32": (1.0, 1, torch.float32, 1 << 24), "float64": (1.0, 1, torch.float64, 1 << 53),
         "float16": (0x3C003C00, 2, torch.float16, 1 << 11), "bfloat16": (0x3F803F80, 2, torch.bfloat16, 1 << 8)}


@functools.cache
def copy_gbps() -> float:
    """1e9 bytes a second, read and written, of PyTorch's copy of an array that no cache holds; measured once a process."""
    size = min(COPIED, torch.cuda.get_device_properties(machine.device()).total_memory // 16)
    x = torch.empty(size // 4, device=machine.device())
    record = timed({"copy": lambda x: x.clone()}, lambda: (x,), 2 * x.nbytes, None, None, None, 20, "copy")
    return record["rows"][0]["gbps"]


@functools.cache
def gflops(dtype: str) -> float:
    """1e9 operations a second of fused multiply-adds, two operations each, outside of the tensor cores.

    dtype: "float32", "float64", "float16" or "bfloat16"; the 16-bit types are counted two numbers an instruction. Raises
    RuntimeError where a probe computed something else than it should.
    """
    one, numbers, result_type, stays = _ONES[dtype]
    blocks = torch.cuda.get_device_properties(machine.device()).multi_processor_count
    ones = torch.full((THREADS,), one, dtype=result_type if numbers == 1 else torch.int32, device="cuda")
    sums = torch.zeros(CHAINS * blocks * THREADS * numbers, dtype=result_type, device="cuda")

    def launch(passes: int) -> None:
        _kernel(f"peak_{dtype}")(grid=(blocks, 1, 1), block=(THREADS, 1, 1), args=[ones, passes, sums])

    passes = 1 << 12
    passes = max(passes, math.ceil(LAUNCH_SECONDS / launch_seconds(lambda: launch(passes)) * passes))
    seconds = launch_seconds(lambda: launch(passes))
    if not bool((sums == min(passes, stays)).all()):
        raise RuntimeError(f"peak_{dtype}: the probe did not compute what it should; its time means nothing. Please report "
                           "this, with the GPU and the versions that labkit.start shows")
    return 2 * sums.numel() * passes / seconds / 1e9


@functools.cache
def tensor_gflops(dtype: str) -> float:
    """1e9 operations a second of PyTorch's product of two large square matrices; dtype: "float16" or "bfloat16"."""
    a, b = (torch.randn(MATRIX, MATRIX, device="cuda", dtype=getattr(torch, dtype)) for _ in range(2))
    return 2 * MATRIX**3 / launch_seconds(lambda: torch.mm(a, b)) / 1e9


@functools.cache
def _kernel(name: str) -> Any:
    toolchain.point_torch_to_cuda()
    # torch 2.9 puts extern "C" before a source that does not begin with it.
    source = 'extern "C" {}\n' + (REPOSITORY / PEAKS).read_text(encoding="utf-8")
    return torch.cuda._compile_kernel(source, name)
