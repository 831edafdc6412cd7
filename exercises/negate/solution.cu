// y = -x, by 16-byte vectors.
//
//   v1  one vector a thread
#include "copy.h"
#include "launch.cuh"
#include "vec.cuh"

constexpr int THREADS = 128;

// aligned: whether both arrays start at a multiple of 16 bytes.
template <class T>
__global__ void negate(const T* x, T* y, int64_t n, bool aligned) {
    constexpr int SIZE = Vec<T>::SIZE;
    const int64_t thread = int64_t(blockIdx.x) * THREADS + threadIdx.x, threads = int64_t(gridDim.x) * THREADS;
    int64_t vectors = n / SIZE;  // how many are moved whole
    // BEGIN SOLUTION
    if (!aligned) vectors = 0;
    // END SOLUTION
    if (thread < vectors) {
        Vec<T> v = load_vec(x + thread * SIZE);
        for (int e = 0; e < SIZE; ++e) v.at[e] = to_element<T>(-to_compute(v.at[e]));
        store_vec(y + thread * SIZE, v);
    }
    // BEGIN SOLUTION
    for (int64_t i = vectors * SIZE + thread; i < n; i += threads) y[i] = to_element<T>(-to_compute(x[i]));
    // END SOLUTION
}

// ---------------------------------------------------------------------------------------------------
// The launch: nothing to do here.
const char* copy_forward(Element element, int64_t, const void* x, void* y, int64_t n, void* stream) {
    if (n == 0) return nullptr;
    return with_type(element, [&](auto t) {
        using T = typename decltype(t)::type;
        const unsigned blocks = divide_up(n, THREADS * Vec<T>::SIZE);
        negate<T><<<blocks, THREADS, 0, static_cast<cudaStream_t>(stream)>>>(
            static_cast<const T*>(x), static_cast<T*>(y), n, is_vec_aligned(x) && is_vec_aligned(y));
        return launch_error();
    });
}
