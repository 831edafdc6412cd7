// ELU, y = x for a positive x and exp(x) - 1 for others, and its gradient from y alone.
//
//   v1  one element a thread
#include <math.h>

#include "launch.cuh"
#include "softmax.h"

constexpr int THREADS = 256;

template <class T>
__global__ void forward(const T* x, T* y, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    const compute_t<T> v = to_compute(x[i]);
    y[i] = to_element<T>(v > 0 ? v : expm1(v));
}

template <class T>
__global__ void backward(const T* grad, const T* y, T* grad_x, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    compute_t<T> slope = 1;
    // Your code here.
    grad_x[i] = to_element<T>(to_compute(grad[i]) * slope);
}

// ---------------------------------------------------------------------------------------------------
// The launch: nothing to do here.
const char* softmax_forward(Element element, int64_t, const void* x, void* y, int64_t rows, int64_t cols, void* stream) {
    return with_type(element, [&](auto t) {
        using T = typename decltype(t)::type;
        forward<T><<<divide_up(rows * cols, THREADS), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(
            static_cast<const T*>(x), static_cast<T*>(y), rows * cols);
        return launch_error();
    });
}

const char* softmax_backward(Element element, int64_t, const void* grad, const void* y, void* grad_x, int64_t rows,
                             int64_t cols, void* stream) {
    return with_type(element, [&](auto t) {
        using T = typename decltype(t)::type;
        backward<T><<<divide_up(rows * cols, THREADS), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(
            static_cast<const T*>(grad), static_cast<const T*>(y), static_cast<T*>(grad_x), rows * cols);
        return launch_error();
    });
}
