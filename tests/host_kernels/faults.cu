// Launches that fail, each in its own way. The tests look for the lines that are marked so: // @name
#include "export.h"
#include <cassert>

__global__ void nothing(int* out) {
    if (out && threadIdx.x + threadIdx.y + threadIdx.z == 0) atomicAdd(out, 1);
}
__global__ void __launch_bounds__(128) bounded(int* out) { if (out && threadIdx.x == 0) *out += 1; }
__global__ void with_memory(int* out) {
    extern __shared__ int memory[];
    memory[threadIdx.x] = 1;
    if (out) *out = memory[0];
}
__global__ void with_both_memories(int* out) {
    __shared__ int fixed[1024];
    extern __shared__ int memory[];
    fixed[0] = memory[0] = 1;
    *out = fixed[0] + memory[0];
}

EXPORT int run_nothing(int* out, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       size_t shared) {
    nothing<<<dim3(gx, gy, gz), dim3(bx, by, bz), shared>>>(out);
    return cudaGetLastError();
}
EXPORT int run_bounded(int* out, int threads) {
    bounded<<<1, threads>>>(out);
    return cudaGetLastError();
}
EXPORT int run_with_memory(int* out, int allowed, size_t shared) {
    if (allowed) {
        const cudaFuncAttribute size = cudaFuncAttributeMaxDynamicSharedMemorySize;
        if (cudaFuncSetAttribute(with_memory, size, allowed) != cudaSuccess) return cudaGetLastError();
    }
    with_memory<<<1, 1, shared>>>(out);
    return cudaGetLastError();
}
EXPORT int run_with_both_memories(int* out, size_t shared) {
    with_both_memories<<<1, 1, shared>>>(out);
    return cudaGetLastError();
}

__global__ void two_barriers(int* out) {
    if (threadIdx.x < 32) {
        __syncthreads();  // @first
    } else {
        __syncthreads();  // @second
    }
    *out = 1;
}
EXPORT int run_two_barriers(int* out, int threads) {
    two_barriers<<<2, threads>>>(out);
    return cudaGetLastError();
}

__global__ void early_return(int* out, int n) {
    if (threadIdx.x >= n) return;
    __syncthreads();
    atomicAdd(out, 1);
    __syncthreads();
    out[1] = *out;
}
EXPORT int run_early_return(int* out, int threads, int n) {
    early_return<<<1, threads>>>(out, n);
    return cudaGetLastError();
}

__global__ void missing_lane(int* out) {
    if (threadIdx.x == 5) {
        __syncthreads();  // @elsewhere
    } else {
        out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);  // @shuffle
        __syncthreads();
    }
}
EXPORT int run_missing_lane(int* out) {
    missing_lane<<<1, 32>>>(out);
    return cudaGetLastError();
}

__global__ void two_masks(int* out) {
    out[threadIdx.x] = __any_sync(threadIdx.x < 4 ? 0xffu : 0xf0u, 1);  // @masks
    __syncthreads();                                                    // @after
}
EXPORT int run_two_masks(int* out) {
    two_masks<<<1, 8>>>(out);
    return cudaGetLastError();
}

__global__ void two_operations(int* out) {
    if (threadIdx.x < 16)
        *out = __any_sync(0xffffffffu, 1);  // @any
    else
        *out = __all_sync(0xffffffffu, 1);  // @all
}
EXPORT int run_two_operations(int* out) {
    two_operations<<<1, 32>>>(out);
    return cudaGetLastError();
}

__global__ void not_in_mask(int* out) { *out = __any_sync(0xffff0000u, 1); }  // @mask
EXPORT int run_not_in_mask(int* out) {
    not_in_mask<<<1, 32>>>(out);
    return cudaGetLastError();
}

__global__ void odd_width(int* out) { *out = __shfl_sync(0xffffffffu, 1, 0, 12); }
EXPORT int run_odd_width(int* out) {
    odd_width<<<1, 32>>>(out);
    return cudaGetLastError();
}

__global__ void asserts(int n) { assert(threadIdx.x < n); }  // @assert
EXPORT int run_asserts(int threads, int n) {
    asserts<<<4, threads>>>(n);
    return cudaGetLastError();
}

__global__ void beyond(int n) {
    extern __shared__ int memory[];
    memory[threadIdx.x] = 0;
}
EXPORT int run_beyond(int threads, size_t shared) {
    beyond<<<1, threads, shared>>>(threads);
    return cudaGetLastError();
}

__global__ void big_frame(int* out, int depth) {
    volatile char local[100 * 1024];
    for (int i = 0; i < depth; ++i) local[sizeof local - 1 - i] = 1;
    __syncthreads();
    *out = local[sizeof local - 1];
}
__device__ int deeper(volatile char* above, int depth) {
    volatile char local[240];
    local[0] = above[0];
    return depth == 0 ? local[0] : deeper(local, depth - 1) + local[0];
}
__global__ void recursion(int* out, int depth) {
    volatile char local[4] = {1};
    *out = deeper(local, depth);
}
EXPORT int run_big_frame(int* out) {
    big_frame<<<1, 64>>>(out, 100 * 1024);
    return cudaGetLastError();
}
EXPORT int run_recursion(int* out, int depth) {
    recursion<<<1, 1>>>(out, depth);
    return cudaGetLastError();
}

// Returns what is pending without clearing it; then the errors' words.
EXPORT int peek_after_fault(int* again) {
    nothing<<<0, 1>>>(nullptr);
    nothing<<<1, 1>>>(nullptr);
    int first = cudaPeekAtLastError();
    *again = cudaPeekAtLastError();
    cudaGetLastError();
    return cudaGetLastError() == cudaSuccess ? first : -1;
}
EXPORT const char* words(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }
EXPORT const char* name(int error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); }
EXPORT int set_device(int device) {
    int count = 0, current = -1;
    cudaGetDeviceCount(&count);
    cudaGetDevice(&current);
    cudaSetDevice(device);
    return cudaGetLastError() + 1000 * (count - 1) + 10000 * current;
}
