// The gradient of the pseudo-Huber loss y = sqrt(1 + x^2) - 1, for x of every size: grad_x = grad x / sqrt(1 + x^2).
//
//   v1  one element a thread
#include <math.h>

#include "gelu.h"
#include "launch.cuh"

constexpr int THREADS = 256;

// Your code here.

// ---------------------------------------------------------------------------------------------------
// The launch: nothing to do here.
constexpr const char* NOT_HERE = "this exercise has backward alone, of 16-bit types and float32";

template <class T>
const char* launch(const void* grad, const void* x, void* grad_x, int64_t n, void* stream) {
    backward<T><<<divide_up(n, THREADS), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const T*>(grad), static_cast<const T*>(x), static_cast<T*>(grad_x), n);
    return launch_error();
}

const char* gelu_backward(Element element, int64_t, const void* grad, const void* x, void* grad_x, int64_t n, void* stream) {
    switch (element) {
        case Element::half: return launch<__half>(grad, x, grad_x, n, stream);
        case Element::bfloat16: return launch<__nv_bfloat16>(grad, x, grad_x, n, stream);
        case Element::float32: return launch<float>(grad, x, grad_x, n, stream);
        default: return NOT_HERE;
    }
}

const char* gelu_forward(Element, int64_t, const void*, void*, int64_t, void*) { return NOT_HERE; }
const char* gelu_forward_derivative(Element, int64_t, const void*, void*, void*, int64_t, void*) { return NOT_HERE; }
const char* gelu_backward_saved(Element, int64_t, const void*, const void*, void*, int64_t, void*) { return NOT_HERE; }
