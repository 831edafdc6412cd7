// Softplus: y = log(1 + exp(x)), about x for a large x and about exp(x) for a small one.
//
//   v1  one element a thread
#include <math.h>

#include "copy.h"
#include "launch.cuh"

constexpr int THREADS = 256;

template <class T>
__global__ void softplus(const T* x, T* y, int64_t n) {
    using F = compute_t<T>;
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    F v = to_compute(x[i]);
    // BEGIN SOLUTION
    v = max(v, F(0)) + log1p(exp(-fabs(v)));
    // END SOLUTION
    y[i] = to_element<T>(v);
}

// ---------------------------------------------------------------------------------------------------
// The launch: nothing to do here.
const char* copy_forward(Element element, int64_t, const void* x, void* y, int64_t n, void* stream) {
    return with_type(element, [&](auto t) {
        using T = typename decltype(t)::type;
        softplus<T><<<divide_up(n, THREADS), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const T*>(x),
                                                                                              static_cast<T*>(y), n);
        return launch_error();
    });
}
