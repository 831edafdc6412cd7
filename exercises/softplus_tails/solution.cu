// Softplus: y = log(1 + exp(x)), which is nearly exp(x) far to the left and nearly x far to the right.
//
//   v1  one element a thread, in a form that neither overflows nor cancels
#include <math.h>

#include "copy.h"
#include "launch.cuh"

constexpr int THREADS = 256;

__device__ float softplus(float x) {
    float y = 0;
    // BEGIN SOLUTION
    y = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
    // END SOLUTION
    return y;
}

// Computed in float32, whatever the elements are.
template <class T>
__global__ void kernel(const T* x, T* y, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i < n) y[i] = to_element<T>(softplus(to_compute(x[i])));
}

// ---------------------------------------------------------------------------------------------------
// The launch: nothing to do here.
const char* copy_forward(Element element, int64_t, const void* x, void* y, int64_t n, void* stream) {
    return with_type(element, [&](auto t) {
        using T = typename decltype(t)::type;
        kernel<T><<<divide_up(n, THREADS), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const T*>(x),
                                                                                           static_cast<T*>(y), n);
        return launch_error();
    });
}
