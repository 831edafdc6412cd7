// Indices, constants, qualifiers and what a device says of itself.
#include "export.h"
#include <cstdint>

// out: one row of 12 numbers a thread, in order of (blockIdx, threadIdx).
__global__ void indices(unsigned* out) {
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned* row = out + 12 * (static_cast<size_t>(block) * blockDim.x * blockDim.y * blockDim.z + thread);
    row[0] = threadIdx.x, row[1] = threadIdx.y, row[2] = threadIdx.z;
    row[3] = blockIdx.x, row[4] = blockIdx.y, row[5] = blockIdx.z;
    row[6] = blockDim.x, row[7] = blockDim.y, row[8] = blockDim.z;
    row[9] = gridDim.x, row[10] = gridDim.y, row[11] = gridDim.z;
}

EXPORT int run_indices(unsigned* out, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                       unsigned bz) {
    indices<<<dim3(gx, gy, gz), dim3(bx, by, bz)>>>(out);
    return cudaGetLastError();
}

// The product of unsigned 32-bit numbers wraps before it is widened.
__global__ void wrapped(int64_t* out, unsigned factor) {
    int64_t narrow = blockDim.x * factor, wide = int64_t(blockDim.x) * factor;
    if (threadIdx.x == 0) out[0] = narrow, out[1] = wide;
}

EXPORT int run_wrapped(int64_t* out, unsigned factor) {
    wrapped<<<1, 1024>>>(out, factor);
    return cudaGetLastError();
}

// How arguments are converted: `a` from a literal, `p` from 0, `d` from an int with a side effect.
struct Pair { int first; float second; };
__constant__ float table[4] = {1.0f, 2.0f, 4.0f, 8.0f};
__device__ __noinline__ float scaled(float x, int i) { return x * table[i]; }
template <int K, class T>
__global__ void __launch_bounds__(64, 2) arguments(T* out, double a, const float* p, long long d, Pair pair) {
    d += threadIdx.x;  // every thread changes a copy of its own
    if (threadIdx.x == blockDim.x - 1) {
        out[0] = T(a), out[1] = p == nullptr, out[2] = T(d), out[3] = T(pair.first) + T(pair.second);
        out[4] = scaled(K, 3);
    }
}

EXPORT int run_arguments(float* out, int* counter, int threads) {
    arguments<5><<<1, threads>>>(out, 3, 0, ++*counter, {10, 0.5f});
    return cudaGetLastError();
}

// A kernel chosen by pointer, and a launch with one argument between the brackets.
__global__ void write_one(int* out) { *out += 1; }
__global__ void write_two(int* out) { *out += 2; }
EXPORT int run_pointer(int* out, int which) {
    void (*const kernels[])(int*) = {write_one, write_two};
    kernels[which]<<<1>>>(out);
    auto kernel = which ? write_two : write_one;
    (kernel)<<<1, 1, 0, nullptr>>>(out);
    return cudaGetLastError();
}

__global__ void trivial(float* x, long long n) {
    long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (i < n) x[i] += 1.0f;
}
EXPORT int run_trivial(float* x, long long n) {
    trivial<<<static_cast<unsigned>((n + 255) / 256), 256>>>(x, n);
    return cudaGetLastError();
}

EXPORT int attribute(int* value, int which, int device) {
    return cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(which), device);
}

// What only a GPU knows: the error of asking, its name and words, and the error that is left behind.
EXPORT int ask_registers() {
    cudaFuncAttributes attributes{};
    return cudaFuncGetAttributes(&attributes, trivial);
}
EXPORT int ask_occupancy() {
    int blocks = -1;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, trivial, 256, 0);
}
EXPORT int left_behind() { return cudaGetLastError(); }
EXPORT const char* name_of(cudaError_t error) { return cudaGetErrorName(error); }
EXPORT const char* words_of(cudaError_t error) { return cudaGetErrorString(error); }

#ifdef __CUDA_ARCH__
__device__ float only_a_gpu(float x) { asm("tanh.approx.f32 %0, %0;" : "+f"(x)); return x; }
#endif
#if defined(__CUDACC__)
#include <cooperative_groups.h>
static void hidden() { void* p; cudaMalloc(&p, 4); trivial<<<1, 1>>>(nullptr, 0); cudaFree(p); }
#endif
