// Hard swish: y = x clamp(x + 3, 0, 6) / 6.
//
//   v1  four blocks, whatever the length of the array
#include "copy.h"
#include "launch.cuh"

constexpr int THREADS = 64, BLOCKS = 4;

__device__ float hard_swish(float x) { return x * fminf(fmaxf(x + 3, 0.0f), 6.0f) / 6; }

__global__ void kernel(const float* x, float* y, int64_t n) {
    // Your code here.
}

// ---------------------------------------------------------------------------------------------------
// The launch: nothing to do here.
const char* copy_forward(Element element, int64_t, const void* x, void* y, int64_t n, void* stream) {
    if (element != Element::float32) return "this exercise takes float32 alone";
    kernel<<<BLOCKS, THREADS, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const float*>(x), static_cast<float*>(y), n);
    return launch_error();
}
