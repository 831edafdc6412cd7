// Each row of a matrix folded in half: its two halves added, through shared memory. Version 2 changes version 1.
//
//   v1  a block a row: each thread stores one element, and the first half of the threads add pairs
//   v2  a block takes several rows, one after another, and uses its shared memory again
//
// x: [rows, cols], y: [rows, half], half = (cols + 1) / 2: y[r][c] = x[r][c] + x[r][c + half]; the middle of an odd row is
// added to nothing. A block has a thread a column. The sum could do without shared memory: these are the smallest kernels
// that need a barrier, and two.
#include "fold.h"
#include "launch.cuh"

constexpr int64_t ROWS = 4;  // of a block in version 2

template <class T> using Kernel = void (*)(const T* x, T* y, int64_t rows, int half);

// ---------------------------------------------------------------------------------------------------
namespace v1 {
constexpr int64_t ROWS_OF_A_BLOCK = 1;

template <class T>
__global__ void kernel(const T* x, T* y, int64_t rows, int half) {
    __shared__ T part[MOST_COLS];
    const int t = threadIdx.x, cols = blockDim.x;
    const int64_t row = blockIdx.x;
    part[t] = x[row * cols + t];
    __syncthreads();
    if (t < half) {
        const compute_t<T> other = t + half < cols ? to_compute(part[t + half]) : 0;
        y[row * half + t] = to_element<T>(to_compute(part[t]) + other);
    }
}
}  // namespace v1

// ---------------------------------------------------------------------------------------------------
namespace v2 {
constexpr int64_t ROWS_OF_A_BLOCK = ROWS;

template <class T>
__global__ void kernel(const T* x, T* y, int64_t rows, int half) {
    __shared__ T part[MOST_COLS];
    const int t = threadIdx.x, cols = blockDim.x;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        part[t] = x[row * cols + t];
        __syncthreads();
        if (t < half) {
            const compute_t<T> other = t + half < cols ? to_compute(part[t + half]) : 0;
            y[row * half + t] = to_element<T>(to_compute(part[t]) + other);
        }
        __syncthreads();  // all have read before the next row is stored
    }
}
}  // namespace v2

// ---------------------------------------------------------------------------------------------------
// From a version and an element type at run time to a template instance.

template <class T>
const char* launch(Kernel<T> kernel, int64_t rows_of_a_block, const void* x, void* y, int64_t rows, int64_t cols,
                   cudaStream_t stream) {
    if (rows == 0 || cols == 0) return nullptr;  // no grid is empty
    const unsigned blocks = divide_up(rows, rows_of_a_block), threads = cols;
    kernel<<<blocks, threads, 0, stream>>>(static_cast<const T*>(x), static_cast<T*>(y), rows, int(cols + 1) / 2);
    return launch_error();
}

template <class T>
const char* launch_as(int64_t version, const void* x, void* y, int64_t rows, int64_t cols, cudaStream_t stream) {
#define VERSION(number)                                                                                     \
    if constexpr (builds(number)) {                                                                         \
        if (version == number)                                                                              \
            return launch<T>(v##number::kernel<T>, v##number::ROWS_OF_A_BLOCK, x, y, rows, cols, stream);   \
    }
    VERSION(1)
    VERSION(2)
#undef VERSION
    return NO_SUCH_VERSION;
}

const char* fold_forward(Element element, int64_t version, const void* x, void* y, int64_t rows, int64_t cols,
                         void* stream) {
    return with_type(element, [&](auto t) {
        return launch_as<typename decltype(t)::type>(version, x, y, rows, cols, static_cast<cudaStream_t>(stream));
    });
}
