// The kernel and its launch, without a header of torch.
#include "launch.h"

#include <cuda_runtime.h>

#include "gelu_one.cuh"

const char* launch_gelu_one(const void* x, void* y, int n, void* stream) {
    const int threads = 128;
    const int64_t elements = threads * Vec<__nv_bfloat16>::SIZE;  // of a block
    const unsigned blocks = static_cast<unsigned>((n + elements - 1) / elements);
    gelu_one<<<blocks, threads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const __nv_bfloat16*>(x),
                                                                        static_cast<__nv_bfloat16*>(y), n);
    const cudaError_t error = cudaGetLastError();
    return error ? cudaGetErrorString(error) : nullptr;
}
