// ReLU squared and its gradient: y = max(x, 0)^2, grad_x = grad dy/dx.
//
//   v1  one element a thread; the backward pass computes what it needs of x again
#include "gelu.h"
#include "launch.cuh"

constexpr int THREADS = 256;

__global__ void forward(const float* x, float* y, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    const float positive = fmaxf(x[i], 0.0f);
    y[i] = positive * positive;
}

// grad: what the loss changes by with y. grad_x: what it changes by with x.
__global__ void backward(const float* grad, const float* x, float* grad_x, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    // Your code here.
}

// ---------------------------------------------------------------------------------------------------
// The launch: nothing to do here.
constexpr const char* NOT_HERE = "this exercise has forward and backward alone, of float32";

const char* gelu_forward(Element element, int64_t, const void* x, void* y, int64_t n, void* stream) {
    if (element != Element::float32) return NOT_HERE;
    forward<<<divide_up(n, THREADS), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const float*>(x),
                                                                                      static_cast<float*>(y), n);
    return launch_error();
}

const char* gelu_backward(Element element, int64_t, const void* grad, const void* x, void* grad_x, int64_t n, void* stream) {
    if (element != Element::float32) return NOT_HERE;
    backward<<<divide_up(n, THREADS), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const float*>(grad), static_cast<const float*>(x), static_cast<float*>(grad_x), n);
    return launch_error();
}

const char* gelu_forward_derivative(Element, int64_t, const void*, void*, void*, int64_t, void*) { return NOT_HERE; }
const char* gelu_backward_saved(Element, int64_t, const void*, const void*, void*, int64_t, void*) { return NOT_HERE; }
