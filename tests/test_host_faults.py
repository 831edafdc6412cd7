"""Launches that fail on the host backend: CUDA's error codes, and words that say where."""

import ctypes

import numpy as np
import pytest
import torch
from host_build import (ASSERT, COMPILERS, INVALID_CONFIGURATION, INVALID_VALUE, KERNELS, LAUNCH_FAILURE, call, compile_text,
                        library)

from labkit.apart import launched_apart


@pytest.mark.parametrize("grid, block, shared, error", [
    ((1, 1, 1), (1024, 1, 1), 0, 0), ((1, 1, 1), (16, 1, 64), 48 * 1024, 0), ((1, 65535, 1), (1, 1, 1), 0, 0),
    ((0, 1, 1), (1, 1, 1), 0, INVALID_CONFIGURATION), ((1, 0, 1), (1, 1, 1), 0, INVALID_CONFIGURATION),
    ((1, 1, 0), (1, 1, 1), 0, INVALID_CONFIGURATION), ((2**31, 1, 1), (1, 1, 1), 0, INVALID_CONFIGURATION),
    ((1, 65536, 1), (1, 1, 1), 0, INVALID_CONFIGURATION),
    ((1, 1, 65536), (1, 1, 1), 0, INVALID_CONFIGURATION),
    ((1, 1, 1), (0, 1, 1), 0, INVALID_CONFIGURATION), ((1, 1, 1), (1, 1, 0), 0, INVALID_CONFIGURATION),
    ((1, 1, 1), (1025, 1, 1), 0, INVALID_CONFIGURATION), ((1, 1, 1), (32, 33, 1), 0, INVALID_CONFIGURATION),
    ((1, 1, 1), (1, 1, 65), 0, INVALID_CONFIGURATION),
    ((1, 1, 1), (65536, 65536, 1), 0, INVALID_CONFIGURATION),
    ((1, 1, 1), (1, 1, 1), 48 * 1024 + 1, INVALID_VALUE),
])
def test_launch_limits(grid, block, shared, error):
    faults, out = library("faults"), np.zeros(1, np.int32)
    assert call(faults.run_nothing, out, *grid, *block, shared) == error
    assert out[0] == (0 if error else np.prod(grid))
    assert words(INVALID_CONFIGURATION) == "invalid configuration argument"
    assert words(INVALID_VALUE) == "invalid argument"


def words(error):
    faults = library("faults")
    faults.words.restype = ctypes.c_char_p
    return faults.words(error).decode()


def test_launch_bounds():
    out = np.zeros(1, np.int32)
    assert call(library("faults").run_bounded, out, 128) == 0
    assert call(library("faults").run_bounded, out, 129) == INVALID_VALUE
    assert out[0] == 1


def test_more_than_48_kib_of_shared_memory_has_to_be_asked_for():
    faults, out = library("faults"), np.zeros(1, np.int32)
    assert call(faults.run_with_memory, out, 0, 49153) == INVALID_VALUE
    assert call(faults.run_with_memory, out, 232449, 0) == INVALID_VALUE
    assert call(faults.run_with_memory, out, 100_000, 100_001) == INVALID_VALUE
    assert out[0] == 0
    assert call(faults.run_with_memory, out, 100_000, 100_000) == 0
    assert call(faults.run_with_memory, out, 232448, 232448) == 0
    assert out[0] == 1
    assert call(faults.run_with_both_memories, out, 45056) == 0
    assert call(faults.run_with_both_memories, out, 45060) == INVALID_VALUE  # 4 KiB of the 48 are taken


def test_errors_stay_until_they_are_asked_for():
    again = np.zeros(1, np.int32)
    assert call(library("faults").peek_after_fault, again) == INVALID_CONFIGURATION
    assert again[0] == INVALID_CONFIGURATION


def line(mark):
    """The number of the line of faults.cu that ends in `// @mark`."""
    lines = (KERNELS / "faults.cu").read_text(encoding="utf-8").splitlines()
    (number,) = [i for i, text in enumerate(lines, 1) if text.endswith(f"// @{mark}")]
    return f"faults.cu:{number}"


def failure(function, *arguments):
    assert call(function, *arguments) == LAUNCH_FAILURE
    text = words(LAUNCH_FAILURE)
    assert text.startswith("unspecified launch failure: kernel ")
    return text


def test_two_barriers_are_told_apart():
    out, faults = np.zeros(1, np.int32), library("faults")
    text = failure(faults.run_two_barriers, out, 64)
    assert "thread (0,0,0) of block" in text and "thread (32,0,0) of block" in text
    assert line("first") in text and line("second") in text and "kernel two_barriers" in text
    assert out[0] == 0
    assert call(faults.run_two_barriers, out, 32) == 0  # all at the first one: and the failure is over
    assert out[0] == 1


def test_a_thread_that_has_returned_is_not_waited_for():
    out = np.zeros(2, np.int32)
    assert call(library("faults").run_early_return, out, 256, 100) == 0
    assert out.tolist() == [100, 100]


def test_a_lane_that_never_comes():
    out = np.zeros(64, np.int32)
    text = failure(library("faults").run_missing_lane, out)
    assert f"waits in __shfl_xor_sync at {line('shuffle')} for lane 5" in text
    assert f"it waits in __syncthreads at {line('elsewhere')}" in text


def test_masks_and_operations_that_do_not_match():
    out = np.zeros(32, np.int32)
    text = failure(library("faults").run_two_masks, out)
    assert f"__any_sync at {line('masks')} for lane 4" in text
    assert f"__syncthreads at {line('after')}" in text
    text = failure(library("faults").run_two_operations, out)
    assert f"__any_sync at {line('any')} for lane 16" in text
    assert f"__all_sync at {line('all')} with mask 0xffffffff" in text
    assert f"{line('mask')} with mask 0xffff0000, which leaves out its own lane 0" in failure(
        library("faults").run_not_in_mask, out)
    assert "with width 12; it must be 1, 2, 4, 8, 16 or 32" in failure(library("faults").run_odd_width, out)


def test_assert_ends_the_launch_and_not_the_process():
    assert library("faults").run_asserts(64, 64) == 0
    assert library("faults").run_asserts(64, 63) == ASSERT
    text = words(ASSERT)
    assert text.startswith("device-side assert triggered: kernel asserts: thread (63,0,0) of block")
    assert "`threadIdx.x < n`" in text and line("assert") in text


def test_writes_beyond_dynamic_shared_memory():
    faults = library("faults")
    assert call(faults.run_beyond, 8, 32) == 0
    assert "to which the launch gave 32 bytes" in failure(faults.run_beyond, 9, 32)
    assert "to which the launch gave 0 bytes" in failure(faults.run_beyond, 1, 0)


def test_stacks():
    faults, out = library("faults"), np.zeros(1, np.int32)
    assert call(faults.run_big_frame, out) == 0
    assert call(faults.run_recursion, out, 50) == 0
    # A frame is some 300 bytes, the watched band at the stack's end 1 KiB: one of these depths ends in it.
    depth = next(d for d in range(200, 600, 2) if call(faults.run_recursion, out, d) != 0)
    text = failure(faults.run_recursion, out, depth)
    assert "more local variables than the host backend's 128 KiB of stack" in text


NULL = """\
#include <cuda_runtime.h>
__global__ void kernel(const float* x, float* y, long n) {
    const long i = long(blockIdx.x) * blockDim.x + threadIdx.x;
    BODY
    y[i] = x[i];
}
extern "C" __attribute__((visibility("default"))) int launch(float* x, float* y) {
    kernel<<<1, 32>>>(x, y, 32);
    return cudaGetLastError();
}
"""


@pytest.mark.parametrize("cxx", COMPILERS)
@pytest.mark.parametrize("body", ["int* q = nullptr; *q = 3;", "*(volatile int*)0 = 1;",
                                  "float* q = nullptr; if (i >= n) return; y[i] = *q; return;"])
def test_a_kernel_that_follows_a_null_pointer_crashes_and_is_not_left_out_by_the_compiler(tmp_path, cxx, body):
    done, built = compile_text(NULL.replace("BODY", body), tmp_path, cxx=cxx)
    assert done.returncode == 0, done.stderr
    x = torch.ones(32)
    with pytest.raises(RuntimeError, match="ended its process by SIGSEGV"):
        next(launched_apart([lambda: [torch.tensor(call(ctypes.CDLL(str(built)).launch, x, x.clone()))]]))
