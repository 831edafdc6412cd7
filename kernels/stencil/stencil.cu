// The mean of each element's 5 x 5 neighbourhood, one idea a version. Each version changes the one before it.
//
//   v1  straight from global memory: a thread reads the 25 neighbours of each of its elements
//   v2  through a tile in shared memory: a block reads its tile and the edge around it once
//   v3  a window in registers: a thread goes down a column and keeps the sums of the last five rows
//
// x, y: [rows, cols]; what lies outside of x counts as 0. In every version a block of 32 x 8 threads makes a tile of
// 64 x 32 elements of y, eight a thread.
#include "launch.cuh"
#include "stencil.h"
#include "tiles.cuh"

constexpr int REACH = 2;             // how far a neighbour is away at most, in rows and in columns
constexpr int SPAN = 2 * REACH + 1;  // rows and columns of a neighbourhood

constexpr int TILE_ROWS = 64, TILE_COLS = 32;
constexpr int THREAD_ROWS = 8;  // of a block; each has TILE_COLS threads

// x[row][col], or 0 outside of the matrix and where it is not `wanted`. With & in place of && nothing is branched around:
// a thread can issue the next load before this one has arrived.
template <class T>
__device__ T at(const T* x, int64_t rows, int64_t cols, int64_t row, int64_t col, bool wanted = true) {
    const bool take = wanted & (0 <= row) & (row < rows) & (0 <= col) & (col < cols);
    return take ? x[row * cols + col] : to_element<T>(0);
}

// What a neighbour counts in the mean. A product, since a division takes about ten instructions.
template <class T> constexpr compute_t<T> SHARE = compute_t<T>(1) / (SPAN * SPAN);

template <class T> using Kernel = void (*)(const T* x, T* y, int64_t rows, int64_t cols);

// ---------------------------------------------------------------------------------------------------
namespace v1 {
template <class T>
__global__ void kernel(const T* x, T* y, int64_t rows, int64_t cols) {
    const int64_t col = tile_col() * TILE_COLS + threadIdx.x;
#pragma unroll 1  // 25 loads are in flight already
    for (int k = threadIdx.y; k < TILE_ROWS; k += THREAD_ROWS) {
        const int64_t row = tile_row() * TILE_ROWS + k;
        compute_t<T> sum = 0;
#pragma unroll
        for (int r = 0; r < SPAN; ++r) {
#pragma unroll
            for (int c = 0; c < SPAN; ++c) sum += to_compute(at(x, rows, cols, row + r - REACH, col + c - REACH));
        }
        if (row < rows && col < cols) y[row * cols + col] = to_element<T>(sum * SHARE<T>);
    }
}
}  // namespace v1

// ---------------------------------------------------------------------------------------------------
namespace v2 {
constexpr int HEIGHT = TILE_ROWS + 2 * REACH, WIDTH = TILE_COLS + 2 * REACH;
constexpr int THREADS = THREAD_ROWS * TILE_COLS;
constexpr int LOADS = divide_up(HEIGHT * WIDTH, THREADS);  // of a thread

// The block's tile of x and REACH elements beyond each of its edges: all of a thread's loads, then its stores.
template <class T>
__device__ void load_tile(compute_t<T> (*tile)[WIDTH], const T* x, int64_t rows, int64_t cols) {
    const int64_t row = tile_row() * TILE_ROWS - REACH, col = tile_col() * TILE_COLS - REACH;
    T loaded[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
        const unsigned i = k * THREADS + threadIdx.y * TILE_COLS + threadIdx.x;
        loaded[k] = at(x, rows, cols, row + i / WIDTH, col + i % WIDTH, i < HEIGHT * WIDTH);
    }
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
        const unsigned i = k * THREADS + threadIdx.y * TILE_COLS + threadIdx.x;
        if (i < HEIGHT * WIDTH) tile[i / WIDTH][i % WIDTH] = to_compute(loaded[k]);
    }
}

template <class T>
__global__ void kernel(const T* x, T* y, int64_t rows, int64_t cols) {
    __shared__ compute_t<T> tile[HEIGHT][WIDTH];
    load_tile(tile, x, rows, cols);
    __syncthreads();
    const int64_t col = tile_col() * TILE_COLS + threadIdx.x;
#pragma unroll 1
    for (int k = threadIdx.y; k < TILE_ROWS; k += THREAD_ROWS) {
        const int64_t row = tile_row() * TILE_ROWS + k;
        compute_t<T> sum = 0;
#pragma unroll
        for (int r = 0; r < SPAN; ++r) {
#pragma unroll
            for (int c = 0; c < SPAN; ++c) sum += tile[k + r][threadIdx.x + c];
        }
        if (row < rows && col < cols) y[row * cols + col] = to_element<T>(sum * SHARE<T>);
    }
}
}  // namespace v2

// ---------------------------------------------------------------------------------------------------
namespace v3 {
using v2::HEIGHT, v2::WIDTH, v2::load_tile;

constexpr int ROWS = TILE_ROWS / THREAD_ROWS;  // of a thread, one below another

template <class T>
__global__ void kernel(const T* x, T* y, int64_t rows, int64_t cols) {
    __shared__ compute_t<T> tile[HEIGHT][WIDTH];
    load_tile(tile, x, rows, cols);
    __syncthreads();
    const int64_t col = tile_col() * TILE_COLS + threadIdx.x;
    compute_t<T> across[SPAN];  // sums of the neighbours in one row, for the last SPAN rows
#pragma unroll  // `across` stays in registers only where every index is a constant
    for (int k = 0; k < ROWS + 2 * REACH; ++k) {
        const int r = threadIdx.y * ROWS + k;
        across[k % SPAN] = 0;
#pragma unroll
        for (int c = 0; c < SPAN; ++c) across[k % SPAN] += tile[r][threadIdx.x + c];
        if (k < 2 * REACH) continue;  // the window is not yet full
        const int64_t row = tile_row() * TILE_ROWS + r - 2 * REACH;
        // All five anew: to subtract the row that leaves would keep its rounding errors, and an inf as a NaN.
        compute_t<T> sum = 0;
#pragma unroll
        for (int i = 0; i < SPAN; ++i) sum += across[i];
        if (row < rows && col < cols) y[row * cols + col] = to_element<T>(sum * SHARE<T>);
    }
}
}  // namespace v3

// ---------------------------------------------------------------------------------------------------
// From a version and an element type at run time to a template instance.

template <class T>
const char* launch(Kernel<T> kernel, const void* x, void* y, int64_t rows, int64_t cols, cudaStream_t stream) {
    if (rows == 0 || cols == 0) return nullptr;  // no grid is empty
    const dim3 grid = grid_for(rows, cols, TILE_ROWS, TILE_COLS), block(TILE_COLS, THREAD_ROWS);
    kernel<<<grid, block, 0, stream>>>(static_cast<const T*>(x), static_cast<T*>(y), rows, cols);
    return launch_error();
}

template <class T>
const char* launch_as(int64_t version, const void* x, void* y, int64_t rows, int64_t cols, cudaStream_t stream) {
#define VERSION(number)                                                                          \
    if constexpr (builds(number)) {                                                              \
        if (version == number) return launch<T>(v##number::kernel<T>, x, y, rows, cols, stream); \
    }
    VERSION(1)
    VERSION(2)
    VERSION(3)
#undef VERSION
    return NO_SUCH_VERSION;
}

const char* stencil_forward(Element element, int64_t version, const void* x, void* y, int64_t rows, int64_t cols,
                            void* stream) {
    return with_type(element, [&](auto t) {
        return launch_as<typename decltype(t)::type>(version, x, y, rows, cols, static_cast<cudaStream_t>(stream));
    });
}
