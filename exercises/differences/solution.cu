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
    // BEGIN SOLUTION
    if (first + SIZE <= n) {
        const Vec<T> v = load_vec(x + first);
        const F after = first + SIZE < n ? to_compute(x[first + SIZE]) : 0;
        Vec<T> result;
        for (int e = 0; e < SIZE; ++e) {
            const F next = e + 1 < SIZE ? to_compute(v.at[(e + 1) % SIZE]) : after;
            result.at[e] = to_element<T>(next - to_compute(v.at[e]));
        }
        store_vec(y + first, result);
        return;
    }
    for (int64_t i = first; i < n; ++i) {
        const F next = i + 1 < n ? to_compute(x[i + 1]) : 0;
        y[i] = to_element<T>(next - to_compute(x[i]));
    }
    // END SOLUTION
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
