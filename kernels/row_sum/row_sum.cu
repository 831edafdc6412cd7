// The sum of each row of a matrix, one idea a version. Each version changes the one before it.
//
//   v1  a tree over neighbours: every second thread adds, then every fourth, ...
//   v2  the same tree, and the threads that add are the first of the block
//   v3  a tree over halves: each adding thread takes an element of its own bank
//   v4  shuffles: a warp adds in registers, and shared memory holds one number a warp
//
// x: [rows, cols], y: [rows]. In every version a block of 256 threads adds up one row: each thread first adds its own
// elements, a block's width apart, and then the versions differ in how the 256 partial sums become one.
#include "launch.cuh"
#include "row_sum.h"

constexpr int THREADS = 256;

// The part of the block's row that this thread adds up alone; 0 where the row is too short for it.
template <class T>
__device__ compute_t<T> sum_of_thread(const T* x, int64_t cols) {
    const T* row = x + blockIdx.x * cols;
    compute_t<T> sum = 0;
    for (int64_t c = threadIdx.x; c < cols; c += THREADS) sum += to_compute(row[c]);
    return sum;
}

// ---------------------------------------------------------------------------------------------------
namespace v1 {
template <class T>
__global__ void kernel(const T* x, T* y, int64_t cols) {
    __shared__ compute_t<T> part[THREADS];
    const unsigned t = threadIdx.x;
    part[t] = sum_of_thread(x, cols);
    __syncthreads();
    for (unsigned s = 1; s < THREADS; s *= 2) {
        if (t % (2 * s) == 0) part[t] += part[t + s];
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = to_element<T>(part[0]);
}
}  // namespace v1

// ---------------------------------------------------------------------------------------------------
namespace v2 {
template <class T>
__global__ void kernel(const T* x, T* y, int64_t cols) {
    __shared__ compute_t<T> part[THREADS];
    const unsigned t = threadIdx.x;
    part[t] = sum_of_thread(x, cols);
    __syncthreads();
    for (unsigned s = 1; s < THREADS; s *= 2) {
        const unsigned index = 2 * s * t;
        if (index < THREADS) part[index] += part[index + s];
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = to_element<T>(part[0]);
}
}  // namespace v2

// ---------------------------------------------------------------------------------------------------
namespace v3 {
template <class T>
__global__ void kernel(const T* x, T* y, int64_t cols) {
    __shared__ compute_t<T> part[THREADS];
    const unsigned t = threadIdx.x;
    part[t] = sum_of_thread(x, cols);
    __syncthreads();
    for (unsigned s = THREADS / 2; s > 0; s /= 2) {
        if (t < s) part[t] += part[t + s];
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = to_element<T>(part[0]);
}
}  // namespace v3

// ---------------------------------------------------------------------------------------------------
namespace v4 {
constexpr int LANES = 32;
constexpr int WARPS = THREADS / LANES;

// Lane 0 gets the sum over the first `lanes` lanes of its warp; all 32 take part.
template <class F>
__device__ F sum_of_lanes(F sum, int lanes) {
    for (int s = lanes / 2; s > 0; s /= 2) sum += __shfl_down_sync(0xffffffff, sum, s);
    return sum;
}

template <class T>
__global__ void kernel(const T* x, T* y, int64_t cols) {
    __shared__ compute_t<T> part[WARPS];
    const unsigned t = threadIdx.x;
    const compute_t<T> sum = sum_of_lanes(sum_of_thread(x, cols), LANES);
    if (t % LANES == 0) part[t / LANES] = sum;
    __syncthreads();
    if (t < LANES) {  // the first warp, whole
        const compute_t<T> all = sum_of_lanes(t < WARPS ? part[t] : 0, WARPS);
        if (t == 0) y[blockIdx.x] = to_element<T>(all);
    }
}
}  // namespace v4

// ---------------------------------------------------------------------------------------------------
// From a version and an element type at run time to a template instance.

template <class T>
const char* launch(void (*kernel)(const T*, T*, int64_t), const void* x, void* y, int64_t rows, int64_t cols,
                   cudaStream_t stream) {
    if (rows == 0) return nullptr;  // no grid is empty
    const unsigned blocks = rows;
    kernel<<<blocks, THREADS, 0, stream>>>(static_cast<const T*>(x), static_cast<T*>(y), cols);
    return launch_error();
}

template <class T>
const char* launch_as(int64_t version, const void* x, void* y, int64_t rows, int64_t cols, cudaStream_t stream) {
#define VERSION(number)                                                                              \
    if constexpr (builds(number)) {                                                                  \
        if (version == number) return launch(v##number::kernel<T>, x, y, rows, cols, stream);        \
    }
    VERSION(1)
    VERSION(2)
    VERSION(3)
    VERSION(4)
#undef VERSION
    return NO_SUCH_VERSION;
}

const char* row_sum_forward(Element element, int64_t version, const void* x, void* y, int64_t rows, int64_t cols,
                            void* stream) {
    return with_type(element, [&](auto t) {
        return launch_as<typename decltype(t)::type>(version, x, y, rows, cols, static_cast<cudaStream_t>(stream));
    });
}
