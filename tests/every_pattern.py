"""Launches every kernel of host_kernels/banks.cu or branches.cu, from a library that nvcc made; run under Nsight Compute.

`every_pattern.py LIBRARY LAUNCHES ARRAYS N`: ARRAYS is a file of tensors, the launcher's pointers; N, if not -1, follows them.
"""

import ctypes
import sys

import torch

library, launches, n = ctypes.CDLL(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4])
tensors = [t.cuda() for t in torch.load(sys.argv[3])]
arguments = [ctypes.c_void_p(t.data_ptr()) for t in tensors] + ([n] if n >= 0 else [])
torch.cuda.synchronize()
torch.cuda.profiler.start()
for k in range(launches):
    assert library.run(*arguments, k) == 0
torch.cuda.synchronize()
torch.cuda.profiler.stop()
