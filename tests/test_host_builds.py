"""Builds for the host backend, by g++ and clang++; and nvcc's word that the test kernels are CUDA."""

import ctypes
import subprocess
import time

import numpy as np
import pytest
from host_build import COMPILERS, KERNELS, NAMES, call, compile_text

from labkit import machine


def test_two_builds_of_an_edited_file_share_nothing(tmp_path):
    text = """
#include "export.h"
template <class T> __global__ void k(int* out) {
    __shared__ T big[SIZE];
    static_assert(sizeof(big) == SIZE * sizeof(T));
    big[SIZE - 1] = SIZE;
    *out = big[SIZE - 1];
}
EXPORT int run(int* out) { k<int><<<1, 1>>>(out); return cudaGetLastError(); }
"""
    out = np.zeros(1, np.int32)
    for size in (4, 10_000):
        done, built = compile_text(text, tmp_path, f"size{size}.cu", flags=[f"-DSIZE={size}"])
        assert done.returncode == 0, done.stderr
        assert call(ctypes.CDLL(str(built), mode=ctypes.RTLD_GLOBAL).run, out) == 0
        assert out[0] == size


def test_an_editor_waits_half_a_second_for_the_headers(tmp_path):
    text = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
    times = []
    for _ in range(3):
        start = time.perf_counter()
        done, _ = compile_text(text, tmp_path, flags=["-fsyntax-only", "-Wall", "-Wextra", "-Werror"])
        times.append(time.perf_counter() - start)
        assert done.returncode == 0, done.stderr
    assert min(times) < 1.5  # 0.4 s, with room for a busy machine


@pytest.mark.skipif("clang++" not in COMPILERS, reason="needs clang++")
@pytest.mark.parametrize("name", NAMES)
def test_clang_takes_it_too(tmp_path, name):
    text = (KERNELS / f"{name}.cu").read_text(encoding="utf-8")
    done, _ = compile_text(text, tmp_path, f"{name}.cu", flags=["-fsyntax-only"], cxx="clang++")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(machine.find_nvcc() is None, reason="needs nvcc")
def test_the_kernels_are_cuda(tmp_path):
    # -cubin: the host's half is read too, and left to other compilers to translate.
    done = subprocess.run([str(machine.find_nvcc()), "-std=c++20", "-arch=sm_90", "-cubin",
                           *[str(KERNELS / f"{name}.cu") for name in NAMES]],
                          cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
