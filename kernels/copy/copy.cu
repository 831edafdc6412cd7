// y = x, the same copy with the lanes of a warp further and further apart. Every version changes version 1.
//
//   v1  stride 1: a warp reads and writes 32 elements in a row
//   v2  stride 2: every second element
//   v3  stride 8: every eighth
//   v4  stride 32: every thirty-second
//
// n: elements. Every version reads and writes each element once, one a thread; only the addresses that the lanes of
// one warp have at the same time differ.
#include <cuda_runtime.h>

#include "copy.h"
#include "element.cuh"

// Set to one version to compile that one alone: a short way from an edit to a launch. 0 compiles all.
#ifndef BUILD_VERSION
#define BUILD_VERSION 0
#endif
constexpr bool builds(int version) { return BUILD_VERSION == 0 || BUILD_VERSION == version; }

// ---------------------------------------------------------------------------------------------------
namespace v1 {
constexpr int STRIDE = 1;
constexpr int THREADS = 256;
constexpr int LANES = 32;  // of a warp

// APART warps share APART * LANES elements in a row, a group: lane l of its warp w takes element l * APART + w.
template <int APART, class T>
__global__ void kernel(const T* x, T* y, int64_t n) {
    const int64_t thread = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    const int64_t group = thread / (APART * LANES);
    const int lane = thread % LANES, warp = thread / LANES % APART;
    const int64_t i = group * (APART * LANES) + lane * APART + warp;
    if (i < n) y[i] = x[i];
}

// The last group may be partly filled. All of its warps run even so, since each has some of its elements.
template <int APART, class T>
void launch(const T* x, T* y, int64_t n, cudaStream_t stream) {
    const int64_t groups = (n + APART * LANES - 1) / (APART * LANES);
    const unsigned blocks = (groups * (APART * LANES) + THREADS - 1) / THREADS;
    kernel<APART><<<blocks, THREADS, 0, stream>>>(x, y, n);
}
}  // namespace v1

// ---------------------------------------------------------------------------------------------------
namespace v2 {
constexpr int STRIDE = 2;

using v1::launch;
}  // namespace v2

// ---------------------------------------------------------------------------------------------------
namespace v3 {
constexpr int STRIDE = 8;

using v1::launch;
}  // namespace v3

// ---------------------------------------------------------------------------------------------------
namespace v4 {
constexpr int STRIDE = 32;

using v1::launch;
}  // namespace v4

// ---------------------------------------------------------------------------------------------------
// From a version and an element type at run time to a template instance.

template <class T>
const char* launch_as(int64_t version, const void* x, void* y, int64_t n, cudaStream_t stream) {
#define VERSION(number)                                                                                        \
    if constexpr (builds(number)) {                                                                            \
        if (version == number) {                                                                               \
            if (n == 0) return nullptr; /* no grid is empty */                                                 \
            v##number::launch<v##number::STRIDE>(static_cast<const T*>(x), static_cast<T*>(y), n, stream);     \
            const cudaError_t error = cudaGetLastError();                                                      \
            return error ? cudaGetErrorString(error) : nullptr;                                                \
        }                                                                                                      \
    }
    VERSION(1)
    VERSION(2)
    VERSION(3)
    VERSION(4)
#undef VERSION
    return "this build has no such version";
}

const char* copy_forward(Element element, int64_t version, const void* x, void* y, int64_t n, void* stream) {
    const auto s = static_cast<cudaStream_t>(stream);
    switch (element) {
        case Element::half: return launch_as<__half>(version, x, y, n, s);
        case Element::bfloat16: return launch_as<__nv_bfloat16>(version, x, y, n, s);
        case Element::float32: return launch_as<float>(version, x, y, n, s);
        case Element::float64: return launch_as<double>(version, x, y, n, s);
    }
    return "no such element type";
}
