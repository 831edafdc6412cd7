// Each element squared: y = x^2.
//
//   v1  16-byte vectors, one a thread; the elements after the last whole vector go one by one
#include "copy.h"
#include "launch.cuh"
#include "vec.cuh"

constexpr int THREADS = 128;

// Of a number that is computed in: to_compute makes it of an element, and to_element<T> an element of it.
template <class F> __device__ F square(F x) { return x * x; }

// x and y start at multiples of 16 bytes. The grid has a thread for each whole vector and for each element that is left over.
template <class T>
__global__ void kernel(const T* x, T* y, int64_t n) {
    constexpr int SIZE = Vec<T>::SIZE;  // elements of a vector
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    const int64_t vectors = n / SIZE;  // whole ones
    // Your code here.
}

// ---------------------------------------------------------------------------------------------------
// The launch: nothing to do here.
const char* copy_forward(Element element, int64_t, const void* x, void* y, int64_t n, void* stream) {
    if (!is_vec_aligned(x) || !is_vec_aligned(y)) return "x or y starts at no multiple of 16 bytes";
    return with_type(element, [&](auto t) {
        using T = typename decltype(t)::type;
        const int64_t threads = n / Vec<T>::SIZE + n % Vec<T>::SIZE;
        kernel<T><<<divide_up(threads, THREADS), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(
            static_cast<const T*>(x), static_cast<T*>(y), n);
        return launch_error();
    });
}
