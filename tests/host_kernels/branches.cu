// Kernels whose lanes part and meet again, in ways that loops and conditions bring about: which of their accesses are one
// request is the compiler's decision, so the trace's answer is compared with a GPU's. With nvcc it is a library too.
#include <cuda_runtime.h>

// f: numbers below 2^20 in no order, some of them negative.

__global__ void border(const float* x, const int* f, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
#pragma unroll 1
    for (int k = -5; k <= 5; ++k) {
        const int j = i + k;
        if (j >= 0 && j < n) sum += x[j];
    }
    y[i] = sum;
}

__global__ void own_length(const float* x, const int* f, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
#pragma unroll 1
    for (int k = 0; k < (f[i] & 15); ++k) sum += x[i + k];
    y[i] = sum;
}

__global__ void some_iterations(const float* x, const int* f, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int turns = f[i] & 15, loads = f[i] >> 4;
    float sum = 0;
#pragma unroll 1
    for (int k = 0; k < turns; ++k)
        if (loads >> k & 1) sum += x[i + k];
    y[i] = sum;
}

__global__ void leaves_early(const float* x, const int* f, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
#pragma unroll 1
    for (int k = 0; k < 16; ++k) {
        if (f[i] >> k & 1) break;
        sum += x[i + k];
    }
    y[i] = sum;
}

__global__ void skips(const float* x, const int* f, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
#pragma unroll 1
    for (int k = 0; k < 8; ++k) {
        const float v = x[i + k];
        sum += v;  // or nvcc would load v only where it is needed
        if (f[i] >> k & 1) continue;
        sum += v * x[i + 2 * k];
    }
    y[i] = sum;
}

__global__ void returns_inside(const float* x, const int* f, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = 0;
    if (i & 1) {
        if (f[i] < 0) return;
        v = x[i];
    }
    y[i] = v;
}

__global__ void either_condition(const float* x, const int* f, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i % 3 == 0 || f[i] > 0) y[i] = x[i];
}

__global__ void nested(const float* x, const int* f, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
#pragma unroll 1
    for (int k = 0; k < (f[i] & 3) + 1; ++k) {
#pragma unroll 1
        for (int j = 0; j < (f[i] >> 2 & 3); ++j) sum += x[i + 4 * k + j];
        y[i + k * n] = sum;
    }
}

__global__ void cases(const float* x, const int* f, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = x[i];
    switch (f[i] & 3) {
        case 0: v += x[i + 1]; break;
        case 1: v *= x[i + 2]; break;
        case 2: v -= x[i + 3]; break;
        default: y[i + n] = v;
    }
    y[i] = v;
}

__device__ __attribute__((noinline)) float sum_of(const float* x, int count) {
    float sum = 0;
#pragma unroll 1
    for (int k = 0; k < count; ++k) sum += x[k];
    return sum;
}

__global__ void calls(const float* x, const int* f, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = sum_of(x + i, f[i] & 3);
    if (i & 1) v += sum_of(x + i, 2);
    y[i] = v;
}

constexpr int KERNELS = 10;

extern "C" __attribute__((visibility("default"))) int run(const float* x, const int* f, float* y, int n, int k) {
    void (*const kernels[KERNELS])(const float*, const int*, float*, int) = {
        border, own_length, some_iterations, leaves_early, skips, returns_inside, either_condition, nested, cases, calls};
    kernels[k]<<<(n + 127) / 128, 128>>>(x, f, y, n);
    return cudaGetLastError();
}
