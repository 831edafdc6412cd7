// The transpose of a matrix, one idea a version. Each version changes the one before it.
//
//   v1  straight from x to y: a warp reads along a row and writes down a column
//   v2  through a tile in shared memory: a warp reads along a row and writes along a row
//   v3  one column of padding: the tile's columns lie in different banks
//
// x: [rows, cols], y: [cols, rows]. In every version a block of 32 x 8 threads moves a tile of 32 x 32 elements, four
// a thread, and all four are loaded before the first is stored.
#include <cuda_runtime.h>

#include "element.cuh"
#include "transpose.h"

// Set to one version to compile that one alone: a short way from an edit to a launch. 0 compiles all.
#ifndef BUILD_VERSION
#define BUILD_VERSION 0
#endif
constexpr bool builds(int version) { return BUILD_VERSION == 0 || BUILD_VERSION == version; }

// ---------------------------------------------------------------------------------------------------
// Which tile of x a block moves. The grid's y ends at 65535, so further rows of tiles are in its z.

constexpr int TILE = 32;        // rows and columns of a tile
constexpr int THREAD_ROWS = 8;  // of a block; each has TILE threads

__device__ inline int64_t first_row() { return (int64_t(blockIdx.z) * gridDim.y + blockIdx.y) * TILE; }
__device__ inline int64_t first_col() { return int64_t(blockIdx.x) * TILE; }

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline dim3 grid_for(int64_t rows, int64_t cols) {
    const int64_t across = divide_up(cols, TILE), down = divide_up(rows, TILE);
    const int64_t z = divide_up(down, 65535);
    return dim3(across, divide_up(down, z), z);
}

// ---------------------------------------------------------------------------------------------------
namespace v1 {
template <class T>
__global__ void kernel(const T* x, T* y, int64_t rows, int64_t cols) {
    T moved[TILE / THREAD_ROWS];
    const int64_t row = first_row() + threadIdx.y, col = first_col() + threadIdx.x;
#pragma unroll  // `moved` stays in registers only where every index is a constant
    for (int k = 0; k < TILE; k += THREAD_ROWS) {
        if (row + k < rows && col < cols) moved[k / THREAD_ROWS] = x[(row + k) * cols + col];
    }
#pragma unroll
    for (int k = 0; k < TILE; k += THREAD_ROWS) {
        if (row + k < rows && col < cols) y[col * rows + row + k] = moved[k / THREAD_ROWS];
    }
}
}  // namespace v1

// ---------------------------------------------------------------------------------------------------
namespace v2 {
template <class T>
__global__ void kernel(const T* x, T* y, int64_t rows, int64_t cols) {
    __shared__ T tile[TILE][TILE];
    const int64_t row = first_row() + threadIdx.y, col = first_col() + threadIdx.x;
#pragma unroll
    for (int k = 0; k < TILE; k += THREAD_ROWS) {
        if (row + k < rows && col < cols) tile[threadIdx.y + k][threadIdx.x] = x[(row + k) * cols + col];
    }
    __syncthreads();
    // In y the tile lies where its row and column are swapped.
    const int64_t y_row = first_col() + threadIdx.y, y_col = first_row() + threadIdx.x;
#pragma unroll
    for (int k = 0; k < TILE; k += THREAD_ROWS) {
        if (y_row + k < cols && y_col < rows) y[(y_row + k) * rows + y_col] = tile[threadIdx.x][threadIdx.y + k];
    }
}
}  // namespace v2

// ---------------------------------------------------------------------------------------------------
namespace v3 {
template <class T>
__global__ void kernel(const T* x, T* y, int64_t rows, int64_t cols) {
    __shared__ T tile[TILE][TILE + 1];
    const int64_t row = first_row() + threadIdx.y, col = first_col() + threadIdx.x;
#pragma unroll
    for (int k = 0; k < TILE; k += THREAD_ROWS) {
        if (row + k < rows && col < cols) tile[threadIdx.y + k][threadIdx.x] = x[(row + k) * cols + col];
    }
    __syncthreads();
    // In y the tile lies where its row and column are swapped.
    const int64_t y_row = first_col() + threadIdx.y, y_col = first_row() + threadIdx.x;
#pragma unroll
    for (int k = 0; k < TILE; k += THREAD_ROWS) {
        if (y_row + k < cols && y_col < rows) y[(y_row + k) * rows + y_col] = tile[threadIdx.x][threadIdx.y + k];
    }
}
}  // namespace v3

// ---------------------------------------------------------------------------------------------------
// From a version and an element type at run time to a template instance.

template <class T>
const char* launch(void (*kernel)(const T*, T*, int64_t, int64_t), const void* x, void* y, int64_t rows, int64_t cols,
                   cudaStream_t stream) {
    if (rows == 0 || cols == 0) return nullptr;  // no grid is empty
    const dim3 grid = grid_for(rows, cols), block(TILE, THREAD_ROWS);
    kernel<<<grid, block, 0, stream>>>(static_cast<const T*>(x), static_cast<T*>(y), rows, cols);
    const cudaError_t error = cudaGetLastError();
    return error ? cudaGetErrorString(error) : nullptr;
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
#undef VERSION
    return "this build has no such version";
}

const char* transpose_forward(Element element, int64_t version, const void* x, void* y, int64_t rows, int64_t cols,
                              void* stream) {
    const auto s = static_cast<cudaStream_t>(stream);
    switch (element) {
        case Element::half: return launch_as<__half>(version, x, y, rows, cols, s);
        case Element::bfloat16: return launch_as<__nv_bfloat16>(version, x, y, rows, cols, s);
        case Element::float32: return launch_as<float>(version, x, y, rows, cols, s);
        case Element::float64: return launch_as<double>(version, x, y, rows, cols, s);
    }
    return "no such element type";
}
