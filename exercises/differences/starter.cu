// The differences of neighbours: y[i] = x[i + 1] - x[i], x being 0 beyond its end.
//
//   v1  a 16-byte vector a thread, and the element after it
#include "copy.h"
#include "launch.cuh"
#include "vec.cuh"

constexpr int THREADS = 128;

// Both arrays start at a multiple of 16 bytes.
template <class T>
__global__ void differences(const T* x, T* y, int64_t n) {
    using F = compute_t<T>;
    constexpr int SIZE = Vec<T>::SIZE;
    const int64_t first = (int64_t(blockIdx.x) * THREADS + threadIdx.x) * SIZE;  // of this thread's elements
    // Your code here.
}

// ---------------------------------------------------------------------------------------------------
// The launch: nothing to do here.
const char* copy_forward(Element element, int64_t, const void* x, void* y, int64_t n, void* stream) {
    if (n == 0) return nullptr;
    if (!is_vec_aligned(x) || !is_vec_aligned(y)) return "x or y starts at no multiple of 16 bytes";
    return with_type(element, [&](auto t) {
        using T = typename decltype(t)::type;
        const unsigned blocks = divide_up(n, THREADS * Vec<T>::SIZE);
        differences<T><<<blocks, THREADS, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const T*>(x),
                                                                                  static_cast<T*>(y), n);
        return launch_error();
    });
}
