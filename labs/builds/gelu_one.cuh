// The kernel that the build ladder compiles in every way: GeLU of n bfloat16 numbers, made of the functions of
// kernels/gelu/gelu.cu. One name, pointers and an int: what a kernel has to be so that every way can call it.
#pragma once

#define KERNELS_ONLY
#include "gelu.cu"

// x, y: n elements, at multiples of 16 bytes. One thread a vector of 8.
extern "C" __global__ void gelu_one(const __nv_bfloat16* x, __nv_bfloat16* y, int n) {
    using Mode = Forward<v7::Math>;
    using T = __nv_bfloat16;
    const int64_t at = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * Vec<T>::SIZE;
    if (at + Vec<T>::SIZE <= n) {
        Vec<T> in[1] = {load_vec(x + at)}, out[1];
        one_vector<Mode, T>(in, out);
        store_vec(y + at, out[0]);
    }
    rest_after_vectors<Mode, T>({{x}, {y}}, n);
}
