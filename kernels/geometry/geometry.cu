// GeLU (tanh form) with the launch geometry as a parameter. One kernel; a version is how many elements a thread has, and in
// which order. The threads of a block are a number that the caller gives.
//
//   v1  one element a thread
//   v2  2 consecutive elements a thread
//   v3  4 consecutive elements a thread: the article's way, with 32 threads a block
//   v4  8 consecutive elements a thread
//   v5  16 consecutive elements a thread
//   v6  2 elements a thread, a block's width apart
//   v7  4 elements a thread, a block's width apart
//   v8  8 elements a thread, a block's width apart
//   v9  16 elements a thread, a block's width apart
//
// n: elements. A block takes blockDim.x * ELEMENTS of them in a row, in every version; only who takes which differs. Elements
// are loaded one by one, never as a vector.
#include <math.h>

#include "approx.cuh"
#include "geometry.h"
#include "launch.cuh"

constexpr int MOST_THREADS = 1024;  // a block, on every GPU

// ---------------------------------------------------------------------------------------------------
// The function of one element: gelu(x) = x sigmoid(2z) with 2z = x (A + B x^2), as v7 of kernels/gelu/gelu.cu has it. It
// takes so few instructions that how the data moves decides the time. Below x = -16, where x sigmoid(2z) is zero to any
// float, the clamp keeps an infinite x from meeting that zero.

constexpr double A = 1.59576912160573071176;  // 2 sqrt(2 / pi)
constexpr double B = 0.044715 * A;

// Up to x = -9.9 the exponential fits a float. Beyond, y is 0 instead of a number smaller than 2e-37.
__device__ inline float gelu(float x) {
    constexpr double LOG2E = 1.44269504088896341;
    const float e = approx_exp2(x * fmaf(x * x, float(-B * LOG2E), float(-A * LOG2E)));
    return fmaxf(x, -16.0f) * approx_reciprocal(1 + e);
}

__device__ inline double gelu(double x) { return fmax(x, -40.0) / (1 + exp(-x * (A + B * x * x))); }

// ---------------------------------------------------------------------------------------------------
enum class Order { consecutive, apart };

namespace v1 {
constexpr int ELEMENTS = 1;
constexpr Order ORDER = Order::consecutive;

template <int ELEMENTS, Order ORDER, class T>
__global__ void __launch_bounds__(MOST_THREADS) kernel(const T* x, T* y, int64_t n) {
    constexpr bool CONSECUTIVE = ORDER == Order::consecutive;
    const int64_t of_block = int64_t(blockIdx.x) * blockDim.x * ELEMENTS;
    const int64_t first = of_block + threadIdx.x * (CONSECUTIVE ? ELEMENTS : 1);
    const int step = CONSECUTIVE ? 1 : blockDim.x;
    if (first + (ELEMENTS - 1) * step < n) {
        T loaded[ELEMENTS];  // all of them, before the first is used
#pragma unroll  // the array stays in registers only where every index is a constant
        for (int k = 0; k < ELEMENTS; ++k) loaded[k] = x[first + k * step];
#pragma unroll
        for (int k = 0; k < ELEMENTS; ++k) y[first + k * step] = to_element<T>(gelu(to_compute(loaded[k])));
    } else {  // the array ends before this thread's last element
        for (int64_t i = first; i < n; i += step) y[i] = to_element<T>(gelu(to_compute(x[i])));
    }
}
}  // namespace v1

// ---------------------------------------------------------------------------------------------------
namespace v2 {
constexpr int ELEMENTS = 2;
constexpr Order ORDER = Order::consecutive;
}  // namespace v2

namespace v3 {
constexpr int ELEMENTS = 4;
constexpr Order ORDER = Order::consecutive;
}  // namespace v3

namespace v4 {
constexpr int ELEMENTS = 8;
constexpr Order ORDER = Order::consecutive;
}  // namespace v4

namespace v5 {
constexpr int ELEMENTS = 16;
constexpr Order ORDER = Order::consecutive;
}  // namespace v5

namespace v6 {
constexpr int ELEMENTS = 2;
constexpr Order ORDER = Order::apart;
}  // namespace v6

namespace v7 {
constexpr int ELEMENTS = 4;
constexpr Order ORDER = Order::apart;
}  // namespace v7

namespace v8 {
constexpr int ELEMENTS = 8;
constexpr Order ORDER = Order::apart;
}  // namespace v8

namespace v9 {
constexpr int ELEMENTS = 16;
constexpr Order ORDER = Order::apart;
}  // namespace v9

// ---------------------------------------------------------------------------------------------------
// From a version and an element type at run time to a template instance.

template <class T> struct Instance {
    void (*kernel)(const T* x, T* y, int64_t n);
    int elements;  // a thread; 0 where this build has no such version
};

template <class T>
Instance<T> instance_of(int64_t version) {
#define VERSION(number)                                                                                       \
    if constexpr (builds(number)) {                                                                           \
        if (version == number) return {v1::kernel<v##number::ELEMENTS, v##number::ORDER, T>, v##number::ELEMENTS}; \
    }
    VERSION(1)
    VERSION(2)
    VERSION(3)
    VERSION(4)
    VERSION(5)
    VERSION(6)
    VERSION(7)
    VERSION(8)
    VERSION(9)
#undef VERSION
    return {nullptr, 0};
}

int geometry_elements(int64_t version) { return instance_of<float>(version).elements; }

template <class T>
const char* launch_as(int64_t version, unsigned threads, const void* x, void* y, int64_t n, cudaStream_t stream) {
    const Instance<T> instance = instance_of<T>(version);
    if (!instance.elements) return NO_SUCH_VERSION;
    if (n == 0) return nullptr;  // no grid is empty
    const unsigned blocks = divide_up(n, int64_t(threads) * instance.elements);
    instance.kernel<<<blocks, threads, 0, stream>>>(static_cast<const T*>(x), static_cast<T*>(y), n);
    return launch_error();
}

const char* geometry_forward(Element element, int64_t version, unsigned threads, const void* x, void* y, int64_t n,
                             void* stream) {
    return with_type(element, [&](auto t) {
        return launch_as<typename decltype(t)::type>(version, threads, x, y, n, static_cast<cudaStream_t>(stream));
    });
}

template <class T>
const char* occupancy_as(int64_t version, unsigned threads, Occupancy& found) {
    const Instance<T> instance = instance_of<T>(version);
    if (!instance.elements) return NO_SUCH_VERSION;
    cudaFuncAttributes of_kernel{};
    cudaFuncGetAttributes(&of_kernel, instance.kernel);
    found.registers = of_kernel.numRegs;
    found.shared_bytes = static_cast<int64_t>(of_kernel.sharedSizeBytes);
    int blocks = 0;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, instance.kernel, static_cast<int>(threads), 0);
    found.blocks = blocks;
    return launch_error();
}

const char* geometry_occupancy(Element element, int64_t version, unsigned threads, Occupancy& found) {
    return with_type(element, [&](auto t) { return occupancy_as<typename decltype(t)::type>(version, threads, found); });
}
