// y = x, cut off at -1 and 1.
//
//   v1  one element a thread
#include <math.h>

#include "copy.h"
#include "launch.cuh"

constexpr int THREADS = 256;

template <class T>
__global__ void clamp(const T* x, T* y, int64_t n) {
    using F = compute_t<T>;
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    const F v = to_compute(x[i]);
    F result = min(max(v, F(-1)), F(1));
    // Your code here.
    y[i] = to_element<T>(result);
}

// ---------------------------------------------------------------------------------------------------
// The launch: nothing to do here.
const char* copy_forward(Element element, int64_t, const void* x, void* y, int64_t n, void* stream) {
    if (n == 0) return nullptr;
    return with_type(element, [&](auto t) {
        using T = typename decltype(t)::type;
        clamp<T><<<divide_up(n, THREADS), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const T*>(x),
                                                                                           static_cast<T*>(y), n);
        return launch_error();
    });
}
