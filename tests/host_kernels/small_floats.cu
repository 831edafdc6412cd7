// __half and __nv_bfloat16: conversions, arithmetic, pairs.
#include "export.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float up(__half x) { return __half2float(x); }
__device__ float up(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T> __device__ T down(float x);
template <> __device__ __half down<__half>(float x) { return __float2half(x); }
template <> __device__ __nv_bfloat16 down<__nv_bfloat16>(float x) { return __float2bfloat16(x); }

template <class T>
__global__ void widen(const T* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = up(x[i]);
}
template <class T>
__global__ void narrow(const float* x, T* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = down<T>(x[i]);
}
template <class T>
__global__ void narrow_double(const double* x, T* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = T(x[i]);
}
// out: a + b, a - b, a * b, a / b, fma(a, b, c), max, min, -a
template <class T>
__global__ void arithmetic(const T* a, const T* b, const T* c, T* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T* row = out + 8 * static_cast<long long>(i);
    row[0] = a[i] + b[i], row[1] = __hsub(a[i], b[i]), row[2] = a[i] * b[i], row[3] = a[i] / b[i];
    row[4] = __hfma(a[i], b[i], c[i]), row[5] = __hmax(a[i], b[i]), row[6] = __hmin(a[i], b[i]);
    row[7] = -a[i];
}
#define LAUNCHERS(name, T)                                                                       \
    EXPORT int name##_widen(const void* x, float* out, int n) {                                  \
        widen<<<(n + 255) / 256, 256>>>(static_cast<const T*>(x), out, n);                       \
        return cudaGetLastError();                                                               \
    }                                                                                            \
    EXPORT int name##_narrow(const float* x, void* out, int n) {                                 \
        narrow<<<(n + 255) / 256, 256>>>(x, static_cast<T*>(out), n);                            \
        return cudaGetLastError();                                                               \
    }                                                                                            \
    EXPORT int name##_narrow_double(const double* x, void* out, int n) {                         \
        narrow_double<<<(n + 255) / 256, 256>>>(x, static_cast<T*>(out), n);                     \
        return cudaGetLastError();                                                               \
    }                                                                                            \
    EXPORT int name##_arithmetic(const void* a, const void* b, const void* c, void* out, int n) { \
        arithmetic<<<(n + 255) / 256, 256>>>(static_cast<const T*>(a), static_cast<const T*>(b), \
                                             static_cast<const T*>(c), static_cast<T*>(out), n); \
        return cudaGetLastError();                                                               \
    }
LAUNCHERS(half, __half)
LAUNCHERS(bfloat16, __nv_bfloat16)

// Pairs, shuffles and atomics: each block adds its warp's sum of (1, i) pairs to *total.
__global__ void pairs(__half2* total, __nv_bfloat162* total_b, float2* out, unsigned short* raw) {
    __half2 v = __floats2half2_rn(1.0f, static_cast<float>(threadIdx.x));
    __nv_bfloat162 w = __float2bfloat162_rn(1.0f);
    for (int step = 16; step > 0; step /= 2) {
        v = __hadd2(v, __shfl_xor_sync(0xffffffffu, v, step));
        w = w + __shfl_down_sync(0xffffffffu, w, step);
    }
    if (threadIdx.x == 0) {
        atomicAdd(total, v);
        atomicAdd(total_b, w);
        out[blockIdx.x] = __half22float2(__hfma2(v, __half2half2(__float2half(2.0f)), __lowhigh2highlow(v)));
        raw[blockIdx.x] = __half_as_ushort(__high2half(v));
    }
}
EXPORT int run_pairs(void* total, void* total_b, float2* out, unsigned short* raw, int blocks) {
    pairs<<<blocks, 32>>>(static_cast<__half2*>(total), static_cast<__nv_bfloat162*>(total_b), out, raw);
    return cudaGetLastError();
}
