// The special-function unit's approximations, one instruction each.
//
// Error bounds are the PTX ISA's. `.ftz`: a denormal argument or result becomes zero.
// expf and tanhf use the first two inside. Alone and with .ftz they come only from inline PTX, or from flags that change the
// rest of the file too (-ftz=true, --use_fast_math). CUDA 13 has the third as __tanhf; older toolkits do not.
//
// The host branch flushes denormals as the instructions do, and rounds tanh to 16 significant bits. It is a model:
// close to the hardware's error and not equal to it, bit for bit.
#pragma once

#include <math.h>

#ifdef __CUDA_ARCH__

// 2^x, error at most 2 ulp.
__device__ inline float approx_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x, error at most 1 ulp; 0 where |x| > 2^126.
__device__ inline float approx_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// tanh(x), relative error at most 2^-11; on an H200 no more than 2^-16.4 was seen. Needs sm_75.
__device__ inline float approx_tanh(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else

__device__ inline float flush_denormal(float y) { return fabsf(y) < 1.17549435e-38f ? copysignf(0.0f, y) : y; }

__device__ inline float approx_exp2(float x) { return flush_denormal(exp2f(flush_denormal(x))); }

__device__ inline float approx_reciprocal(float x) { return flush_denormal(1.0f / flush_denormal(x)); }

// Keeps 16 of the 24 significant bits: adding and subtracting `big` rounds there.
__device__ inline float approx_tanh(float x) {
    const float exact = tanhf(x);
    const float big = exact * 257.0f;
    return big - (big - exact);
}

#endif
