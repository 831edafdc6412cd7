// SiLU and its derivative in one pass: y = x s and derivative = dy/dx, where s = sigmoid(x) = 1 / (1 + exp(-x)).
//
//   v1  one element a thread; the sigmoid is computed once
#include <math.h>

#include "gelu.h"
#include "launch.cuh"

constexpr int THREADS = 256;

template <class T>
__global__ void kernel(const T* x, T* y, T* derivative, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    const float v = to_compute(x[i]);  // float32, whatever the elements are
    // BEGIN SOLUTION
    const float s = 1 / (1 + expf(-v));
    y[i] = to_element<T>(v * s);
    derivative[i] = to_element<T>(s * (1 + v * (1 - s)));
    // END SOLUTION
}

// ---------------------------------------------------------------------------------------------------
// The launch: nothing to do here.
constexpr const char* NOT_HERE = "this exercise has forward_derivative alone, of 16-bit types and float32";

template <class T>
const char* launch(const void* x, void* y, void* derivative, int64_t n, void* stream) {
    kernel<<<divide_up(n, THREADS), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const T*>(x), static_cast<T*>(y), static_cast<T*>(derivative), n);
    return launch_error();
}

const char* gelu_forward_derivative(Element element, int64_t, const void* x, void* y, void* derivative, int64_t n,
                                    void* stream) {
    switch (element) {
        case Element::half: return launch<__half>(x, y, derivative, n, stream);
        case Element::bfloat16: return launch<__nv_bfloat16>(x, y, derivative, n, stream);
        case Element::float32: return launch<float>(x, y, derivative, n, stream);
        default: return NOT_HERE;
    }
}

const char* gelu_forward(Element, int64_t, const void*, void*, int64_t, void*) { return NOT_HERE; }
const char* gelu_backward(Element, int64_t, const void*, const void*, void*, int64_t, void*) { return NOT_HERE; }
const char* gelu_backward_saved(Element, int64_t, const void*, const void*, void*, int64_t, void*) { return NOT_HERE; }
