"""Launches every pattern of host_kernels/banks.cu, from a library that nvcc made of it; run under Nsight Compute by a test."""

import ctypes
import sys

import torch

library = ctypes.CDLL(sys.argv[1])
memory = torch.zeros(1056 * 16, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
torch.cuda.profiler.start()
for k in range(int(sys.argv[2])):
    assert library.run(ctypes.c_void_p(memory.data_ptr()), k) == 0
torch.cuda.synchronize()
torch.cuda.profiler.stop()
