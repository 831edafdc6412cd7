// The kernel and its launch, without a header of torch.
#include "launch.h"

#include <cuda_runtime.h>

#include "gelu_one.cuh"

void launch_gelu_one(const void* x, void* y, int n, void* stream) {
    const int threads = 128, elements = threads * Vec<__nv_bfloat16>::SIZE;
    gelu_one<<<(n + elements - 1) / elements, threads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const __nv_bfloat16*>(x), static_cast<__nv_bfloat16*>(y), n);
}
