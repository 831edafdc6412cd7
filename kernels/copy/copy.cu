// y = x. Versions 1 to 4 draw the lanes of a warp further and further apart; version 5 changes version 1.
//
//   v1  stride 1: a warp reads and writes 32 elements in a row
//   v2  stride 2: every second element
//   v3  stride 8: every eighth
//   v4  stride 32: every thirty-second
//   v5  16-byte vectors: a thread takes 2 to 8 neighbouring elements with one load
//
// n: elements. Every version reads and writes each element once. In versions 1 to 4 a thread has one of them, and only the
// addresses that the lanes of one warp have at the same time differ.
#include "copy.h"
#include "launch.cuh"
#include "vec.cuh"

// ---------------------------------------------------------------------------------------------------
namespace v1 {
constexpr int THREADS = 256;
constexpr int LANES = 32;  // of a warp

// APART warps share APART * LANES elements in a row, a group: lane l of its warp w takes element l * APART + w.
template <int APART, class T>
__global__ void kernel(const T* x, T* y, int64_t n) {
    // Unsigned: then a division by a power of two is one shift.
    const uint64_t thread = uint64_t(blockIdx.x) * THREADS + threadIdx.x;
    const uint64_t group = thread / (APART * LANES), lane = thread % LANES, warp = thread / LANES % APART;
    const int64_t i = group * (APART * LANES) + lane * APART + warp;
    if (i < n) y[i] = x[i];
}

// The last group may be partly filled. All of its warps run even so, since each has some of its elements.
template <int APART, class T>
void launch_apart(const T* x, T* y, int64_t n, cudaStream_t stream) {
    const int64_t groups = divide_up(n, APART * LANES);
    const unsigned blocks = divide_up(groups * (APART * LANES), THREADS);
    kernel<APART><<<blocks, THREADS, 0, stream>>>(x, y, n);
}

template <class T>
void launch(const T* x, T* y, int64_t n, cudaStream_t stream) { launch_apart<1>(x, y, n, stream); }
}  // namespace v1

// ---------------------------------------------------------------------------------------------------
namespace v2 {
template <class T>
void launch(const T* x, T* y, int64_t n, cudaStream_t stream) { v1::launch_apart<2>(x, y, n, stream); }
}  // namespace v2

// ---------------------------------------------------------------------------------------------------
namespace v3 {
template <class T>
void launch(const T* x, T* y, int64_t n, cudaStream_t stream) { v1::launch_apart<8>(x, y, n, stream); }
}  // namespace v3

// ---------------------------------------------------------------------------------------------------
namespace v4 {
template <class T>
void launch(const T* x, T* y, int64_t n, cudaStream_t stream) { v1::launch_apart<32>(x, y, n, stream); }
}  // namespace v4

// ---------------------------------------------------------------------------------------------------
namespace v5 {
constexpr int THREADS = 256;

template <class T>
__global__ void kernel(const T* x, T* y, int64_t n) {
    constexpr int SIZE = Vec<T>::SIZE;
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    const int64_t vectors = n / SIZE;
    if (i < vectors) copy_vec(y + i * SIZE, x + i * SIZE);
    // The last elements, which fill no vector, go to the first threads.
    if (i < n % SIZE) y[vectors * SIZE + i] = x[vectors * SIZE + i];
}

template <class T>
void launch(const T* x, T* y, int64_t n, cudaStream_t stream) {
    if (!is_vec_aligned(x) || !is_vec_aligned(y)) return v1::launch(x, y, n, stream);
    const unsigned blocks = divide_up(divide_up(n, Vec<T>::SIZE), THREADS);
    kernel<<<blocks, THREADS, 0, stream>>>(x, y, n);
}
}  // namespace v5

// ---------------------------------------------------------------------------------------------------
// From a version and an element type at run time to a template instance.

template <class T>
const char* launch_as(int64_t version, const void* x, void* y, int64_t n, cudaStream_t stream) {
#define VERSION(number)                                                                        \
    if constexpr (builds(number)) {                                                            \
        if (version == number) {                                                               \
            if (n == 0) return nullptr; /* no grid is empty */                                 \
            v##number::launch(static_cast<const T*>(x), static_cast<T*>(y), n, stream);        \
            return launch_error();                                                             \
        }                                                                                      \
    }
    VERSION(1)
    VERSION(2)
    VERSION(3)
    VERSION(4)
    VERSION(5)
#undef VERSION
    return NO_SUCH_VERSION;
}

const char* copy_forward(Element element, int64_t version, const void* x, void* y, int64_t n, void* stream) {
    return with_type(element, [&](auto t) {
        return launch_as<typename decltype(t)::type>(version, x, y, n, static_cast<cudaStream_t>(stream));
    });
}
