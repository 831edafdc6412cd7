// Kernels whose requests, sectors and bank conflicts the tests know.
#include "export.h"

template <class T> __global__ void strided(const T* x, T* y, int stride, int first) {
    const int i = first + (blockIdx.x * blockDim.x + threadIdx.x) * stride;
    y[i] = x[i];
}

template <class T> __global__ void shared_strided(const T* x, T* y, int stride) {
    extern __shared__ unsigned char memory[];
    T* tile = reinterpret_cast<T*>(memory);
    for (unsigned i = threadIdx.x; i < 32u * 33u; i += blockDim.x) tile[i] = x[0];
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x * stride % (32 * 33)];
}

__global__ void stencil(const float* x, float* y, int n, int radius) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int k = -radius; k <= radius; ++k) {
        const int j = i + k;
        if (j >= 0 && j < n) sum += x[j];
    }
    y[i] = sum;
}

// Each thread makes its own number of turns, and loads in some of them.
__global__ void data_dependent(const int* turns, const int* loads, const float* x, float* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < turns[i]; ++k)
        if (loads[i] >> k & 1) sum += x[i + k];
    y[i] = sum;
}

__device__ __attribute__((noinline)) float load_here(const float* x, int i) { return x[i]; }
__global__ void two_calls(const float* x, float* y) {
    const int i = threadIdx.x;
    float sum = 0;
    if (i % 2) sum = load_here(x, i);
    else sum = 2 * load_here(x, i);
    y[i] = sum;
}

__global__ void vectors(const float4* x, float4* y) {
    const float4 v = x[threadIdx.x];
    y[threadIdx.x] = {v.w, v.z, v.y, v.x};
}

struct Pair3 { float a, b, c; };
__global__ void structures(const Pair3* x, Pair3* y) { y[threadIdx.x] = x[threadIdx.x]; }

__global__ void histogram(const int* bins, int* y) {
    __shared__ int counts[8];
    if (threadIdx.x < 8) counts[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&counts[bins[threadIdx.x]], 1);
    __syncthreads();
    if (threadIdx.x < 8) atomicAdd(&y[threadIdx.x], counts[threadIdx.x]);
}

// No store that all lanes come to: where a lane ends differs from lane to lane.
__global__ void two_conditions(const int* a, const int* b, const float* x, float* y) {
    const int i = threadIdx.x, first = a[i], second = b[i];
    float sum = 0;
    for (int k = 0; k < 8; ++k) {
        if (first >> k & 1) sum += x[i + k];
        if (second >> k & 1) sum *= x[i + k + 100];
    }
    if (sum == 12345.0f) y[i] = sum;
}

EXPORT int run_two_conditions(const int* a, const int* b, const float* x, float* y) {
    return two_conditions<<<1, 32>>>(a, b, x, y), cudaGetLastError();
}

__global__ void endless(const float* x, float* y) {
    while (x[threadIdx.x] > 0) y[threadIdx.x] = x[threadIdx.x];
}

EXPORT int run_endless(const float* x, float* y) { return endless<<<1, 64>>>(x, y), cudaGetLastError(); }
EXPORT int run_strided4(const float* x, float* y, int blocks, int stride, int first) {
    strided<<<blocks, 64>>>(x, y, stride, first);
    return cudaGetLastError();
}
EXPORT int run_strided2(const unsigned short* x, unsigned short* y, int blocks, int stride, int first) {
    strided<<<blocks, 64>>>(x, y, stride, first);
    return cudaGetLastError();
}
EXPORT int run_strided8(const double* x, double* y, int blocks, int stride, int first) {
    strided<<<blocks, 64>>>(x, y, stride, first);
    return cudaGetLastError();
}
#define SHARED(name, T)                                              \
    EXPORT int run_##name(const T* x, T* y, int stride) {            \
        shared_strided<<<1, 32, 32 * 33 * sizeof(T)>>>(x, y, stride); \
        return cudaGetLastError();                                   \
    }
SHARED(shared2, unsigned short)
SHARED(shared4, float)
SHARED(shared8, double)
SHARED(shared16, float4)
EXPORT int run_stencil(const float* x, float* y, int n, int radius) {
    stencil<<<(n + 127) / 128, 128>>>(x, y, n, radius);
    return cudaGetLastError();
}
EXPORT int run_data_dependent(const int* turns, const int* loads, const float* x, float* y, int blocks) {
    data_dependent<<<blocks, 64>>>(turns, loads, x, y);
    return cudaGetLastError();
}
EXPORT int run_two_calls(const float* x, float* y) { return two_calls<<<1, 32>>>(x, y), cudaGetLastError(); }
EXPORT int run_vectors(const float4* x, float4* y) { return vectors<<<1, 32>>>(x, y), cudaGetLastError(); }
EXPORT int run_structures(const Pair3* x, Pair3* y) { return structures<<<1, 32>>>(x, y), cudaGetLastError(); }
EXPORT int run_histogram(const int* bins, int* y) { return histogram<<<1, 64>>>(bins, y), cudaGetLastError(); }
EXPORT int run_twice(const float* x, float* y) {  // what one launch writes, the next may read
    strided<<<1, 64>>>(x, y, 1, 0);
    strided<<<1, 64>>>(y, y + 64, 1, 0);
    return cudaGetLastError();
}
