// SiLU and its derivative in one pass: y = x s and derivative = s (1 + x (1 - s)), s = sigmoid(x) = 1 / (1 + exp(-x)).
//
//   v1  one element a thread
#include <math.h>

#include "gelu.h"
#include "launch.cuh"

constexpr int THREADS = 256;

template <class T>
__global__ void silu_pair(const T* x, T* y, T* derivative, int64_t n) {
    using F = compute_t<T>;
    // Your code here.
}

// ---------------------------------------------------------------------------------------------------
// The launch: nothing to do here.
const char* gelu_forward_derivative(Element element, int64_t, const void* x, void* y, void* derivative, int64_t n,
                                    void* stream) {
    return with_type(element, [&](auto t) {
        using T = typename decltype(t)::type;
        silu_pair<T><<<divide_up(n, THREADS), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(
            static_cast<const T*>(x), static_cast<T*>(y), static_cast<T*>(derivative), n);
        return launch_error();
    });
}

const char* gelu_forward(Element, int64_t, const void*, void*, int64_t, void*) { return NO_SUCH_VERSION; }

const char* gelu_backward(Element, int64_t, const void*, const void*, void*, int64_t, void*) { return NO_SUCH_VERSION; }

const char* gelu_backward_saved(Element, int64_t, const void*, const void*, void*, int64_t, void*) { return NO_SUCH_VERSION; }
