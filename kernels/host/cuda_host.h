// The host backend: a real .cu file, compiled as plain C++20, runs on the CPU.
//
// How it works, in short. labkit/host.py changes four things in the text of a .cu file: a launch
// `kernel<<<grid, block, shared, stream>>>(args)` becomes `(cuda_host::configure(grid, block, shared,
// stream), kernel(args))`, much as nvcc does it; the body of a __global__ function becomes a lambda that is
// run once a thread; `extern __shared__ T name[]` becomes a pointer, and every other __shared__ variable a
// reference, into the block's shared memory. Everything else is the C++ compiler's work, with the CUDA names that
// these headers define. The threads of one block run one after another on one OS thread; a thread
// that has to wait (barrier, shuffle, vote) is left where it is, on its own small stack, and another one runs
// (cuda_host_block.h). Blocks run in parallel on several OS threads (cuda_host_launch.h). What CUDA has and
// these headers have not is refused by name when the file is compiled (cuda_host_refused.h): a kernel either
// runs or does not build.
//
// It teaches and tests. It is no GPU: its times say nothing about one.
//
// What is modelled but not identical to a GPU:
//   - Arithmetic. Nothing is contracted: a * b + c rounds twice, where nvcc makes one FMA of it by default.
//     Write fmaf where the single rounding matters. Denormals are kept, as nvcc does without -ftz=true.
//   - Math functions are the C library's, and at least as exact as CUDA's; the last bits differ. Approximate
//     intrinsics (__expf, __fdividef, __sinf, ...) return the accurate value, so they show neither the error
//     nor the range limits that they have on a GPU.
//   - Order. Threads of a block run in index order between the points where they wait, so a data race may look
//     harmless. Another order can be had (cuda_host_order.h), and races looked for (trace.cpp). Atomics of different
//     blocks come in any order, as on a GPU; a float sum by atomicAdd changes from run to run.
//   - Progress. A thread gives way only where it waits: a loop that spins on memory until another thread of
//     its block, or a later block, writes there never ends. CUDA promises no more for blocks; since Volta it
//     does for threads.
//   - __activemask() is the calling lane alone. Which lanes happen to run together is never promised; this
//     answer is always a legal one.
//   - A shuffle that reads a lane which has exited, does not exist or is not in the mask is undefined; here
//     it returns all bits set (NaN, -1), and the trace reports it. Shared memory starts with all bits set too,
//     never with convenient zeros. (Shared arrays declared in a header from elsewhere, which is not transformed, hold what the
//     previous block left there, and no trace sees them.)
//   - A thread that reads or writes outside its arrays does to this process what a wild pointer does.
//   - A failed launch (cudaErrorLaunchFailure) is over once cudaGetLastError has returned it. On a GPU it
//     lasts until the process ends. cudaGetErrorString says what happened, and where, after CUDA's own words.
//   - Launches are finished when they return. Streams are accepted and make no difference.
//   - The device is a fiction: the limits and the 132 multiprocessors of an H200, compute capability 9.0, so
//     that a launcher picks the same grid on every machine, and the grid that it picks on the GPU of the
//     recorded results. What depends on registers (cudaFuncGetAttributes, cudaOccupancyMaxActiveBlocksPerMultiprocessor)
//     it answers with cudaErrorNotSupported.
#pragma once

#define CUDA_HOST_BACKEND 1

#ifdef __APPLE__  // or ucontext.h is an error there
#define _XOPEN_SOURCE 700
#define _DARWIN_C_SOURCE
#endif

// assert() in a kernel ends the launch, not the process: cuda_host_launch.h has the failure handler.
#define __assert_fail cuda_host_assert_fail
#define __assert_rtn cuda_host_assert_fail
#include <assert.h>

// Function and variable qualifiers. The host is the device here, so most say nothing.
#define __host__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)  // enforced: the transform passes the bound on to the kernel's body
#define __maxnreg__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __constant__ constexpr  // only constants known when compiling: no cudaMemcpyToSymbol
// Only for a header from elsewhere, whose text is not transformed. One block occupies one OS thread, so its shared
// memory is that OS thread's.
#define __shared__ static thread_local

#include "cuda_host_types.h"
#include "cuda_host_errors.h"
#include "cuda_host_limits.h"
#include "cuda_host_order.h"
#include "cuda_host_state.h"
#include "cuda_host_trace.h"
#include "cuda_host_block.h"
#include "cuda_host_waiting.h"
#include "cuda_host_launch.h"
#include "cuda_host_warp.h"
#include "cuda_host_memory.h"
#include "cuda_host_math.h"
#include "cuda_host_refused.h"
