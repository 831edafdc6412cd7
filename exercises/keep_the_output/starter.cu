// tanh and its gradient, from the output alone: y = tanh(x), grad_x = grad dy/dx.
//
//   v1  one element a thread; the backward pass gets y and never sees x
//
// The operator that comes next keeps y for its own gradient anyway, so that keeping it here costs no memory.
#include <math.h>

#include "gelu.h"
#include "launch.cuh"

constexpr int THREADS = 256;

__global__ void forward(const float* x, float* y, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i < n) y[i] = tanhf(x[i]);
}

// Your code here.

// ---------------------------------------------------------------------------------------------------
// The launch: nothing to do here.
constexpr const char* NOT_HERE = "this exercise has forward and backward_saved alone, of float32";

const char* gelu_forward(Element element, int64_t, const void* x, void* y, int64_t n, void* stream) {
    if (element != Element::float32) return NOT_HERE;
    forward<<<divide_up(n, THREADS), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const float*>(x),
                                                                                      static_cast<float*>(y), n);
    return launch_error();
}

const char* gelu_backward_saved(Element element, int64_t, const void* grad, const void* y, void* grad_x, int64_t n,
                                void* stream) {
    if (element != Element::float32) return NOT_HERE;
    backward<<<divide_up(n, THREADS), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const float*>(grad), static_cast<const float*>(y), static_cast<float*>(grad_x), n);
    return launch_error();
}

const char* gelu_forward_derivative(Element, int64_t, const void*, void*, void*, int64_t, void*) { return NOT_HERE; }
const char* gelu_backward(Element, int64_t, const void*, const void*, void*, int64_t, void*) { return NOT_HERE; }
