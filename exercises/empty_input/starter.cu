// The other sign: y = -x.
//
//   v1  one element a thread; the launcher also takes an array of no elements
#include "copy.h"
#include "launch.cuh"

constexpr int THREADS = 256;

__global__ void negate(const float* x, float* y, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i < n) y[i] = -x[i];
}

// ---------------------------------------------------------------------------------------------------
// The launch. Returns nullptr where all is well, or what went wrong, which the binding raises as an error in Python.
const char* copy_forward(Element element, int64_t, const void* x, void* y, int64_t n, void* stream) {
    if (element != Element::float32) return "this exercise takes float32 alone";
    // Your code here.
    const int64_t blocks = divide_up(n, THREADS);
    negate<<<blocks, THREADS, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const float*>(x), static_cast<float*>(y), n);
    return launch_error();
}
