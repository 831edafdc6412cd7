// A float32 number as two bfloat16 numbers, of which tensor cores can multiply each: x is about high + low.
//
//   v1  one element a thread
//
// All arrays are float32. What is stored in high and low are numbers that bfloat16 has too.
#include "gelu.h"
#include "launch.cuh"

constexpr int THREADS = 256;

__global__ void two_halves(const float* x, float* high, float* low, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    const float v = x[i];
    float first = v, second = 0;
    // Your code here.
    high[i] = first;
    low[i] = second;
}

// ---------------------------------------------------------------------------------------------------
// The launch: nothing to do here.
const char* gelu_forward_derivative(Element element, int64_t, const void* x, void* high, void* low, int64_t n, void* stream) {
    if (n == 0) return nullptr;
    if (element != Element::float32) return "x has to be float32";
    two_halves<<<divide_up(n, THREADS), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const float*>(x), static_cast<float*>(high), static_cast<float*>(low), n);
    return launch_error();
}

const char* gelu_forward(Element, int64_t, const void*, void*, int64_t, void*) { return NO_SUCH_VERSION; }

const char* gelu_backward(Element, int64_t, const void*, const void*, void*, int64_t, void*) { return NO_SUCH_VERSION; }

const char* gelu_backward_saved(Element, int64_t, const void*, const void*, void*, int64_t, void*) { return NO_SUCH_VERSION; }
