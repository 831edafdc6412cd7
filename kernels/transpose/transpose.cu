// The transpose of a matrix, one idea a version. Each version changes the one before it.
//
//   v1  straight from x to y: a warp reads along a row and writes down a column
//   v2  through a tile in shared memory: a warp reads along a row and writes along a row
//   v3  one column of padding: the tile's columns lie in different banks
//   v4  16-byte vectors: a thread turns a small square in registers, and the tile holds vectors
//
// x: [rows, cols], y: [cols, rows]. In versions 1 to 3 a block of 32 x 8 threads moves a tile of 32 x 32 elements, four
// a thread, and all four are loaded before the first is stored.
#include "launch.cuh"
#include "tiles.cuh"
#include "transpose.h"
#include "vec.cuh"

constexpr int TILE = 32;        // rows and columns of a tile, in versions 1 to 3
constexpr int THREAD_ROWS = 8;  // of a block; each has TILE threads

template <class T> using Kernel = void (*)(const T* x, T* y, int64_t rows, int64_t cols);

// ---------------------------------------------------------------------------------------------------
namespace v1 {
template <class T>
__global__ void kernel(const T* x, T* y, int64_t rows, int64_t cols) {
    T moved[TILE / THREAD_ROWS];
    const int64_t row = tile_row() * TILE + threadIdx.y, col = tile_col() * TILE + threadIdx.x;
#pragma unroll  // `moved` stays in registers only where every index is a constant
    for (int k = 0; k < TILE; k += THREAD_ROWS) {
        if (row + k < rows && col < cols) moved[k / THREAD_ROWS] = x[(row + k) * cols + col];
    }
#pragma unroll
    for (int k = 0; k < TILE; k += THREAD_ROWS) {
        if (row + k < rows && col < cols) y[col * rows + row + k] = moved[k / THREAD_ROWS];
    }
}

template <class T>
void launch(Kernel<T> kernel, const T* x, T* y, int64_t rows, int64_t cols, cudaStream_t stream) {
    const dim3 grid = grid_for(rows, cols, TILE, TILE), block(TILE, THREAD_ROWS);
    kernel<<<grid, block, 0, stream>>>(x, y, rows, cols);
}
}  // namespace v1

// ---------------------------------------------------------------------------------------------------
namespace v2 {
template <class T>
__global__ void kernel(const T* x, T* y, int64_t rows, int64_t cols) {
    __shared__ T tile[TILE][TILE];
    const int64_t row = tile_row() * TILE + threadIdx.y, col = tile_col() * TILE + threadIdx.x;
#pragma unroll
    for (int k = 0; k < TILE; k += THREAD_ROWS) {
        if (row + k < rows && col < cols) tile[threadIdx.y + k][threadIdx.x] = x[(row + k) * cols + col];
    }
    __syncthreads();
    // In y the tile lies where its row and column are swapped.
    const int64_t y_row = tile_col() * TILE + threadIdx.y, y_col = tile_row() * TILE + threadIdx.x;
#pragma unroll
    for (int k = 0; k < TILE; k += THREAD_ROWS) {
        if (y_row + k < cols && y_col < rows) y[(y_row + k) * rows + y_col] = tile[threadIdx.x][threadIdx.y + k];
    }
}

using v1::launch;
}  // namespace v2

// ---------------------------------------------------------------------------------------------------
namespace v3 {
template <class T>
__global__ void kernel(const T* x, T* y, int64_t rows, int64_t cols) {
    __shared__ T tile[TILE][TILE + 1];
    const int64_t row = tile_row() * TILE + threadIdx.y, col = tile_col() * TILE + threadIdx.x;
#pragma unroll
    for (int k = 0; k < TILE; k += THREAD_ROWS) {
        if (row + k < rows && col < cols) tile[threadIdx.y + k][threadIdx.x] = x[(row + k) * cols + col];
    }
    __syncthreads();
    // In y the tile lies where its row and column are swapped.
    const int64_t y_row = tile_col() * TILE + threadIdx.y, y_col = tile_row() * TILE + threadIdx.x;
#pragma unroll
    for (int k = 0; k < TILE; k += THREAD_ROWS) {
        if (y_row + k < cols && y_col < rows) y[(y_row + k) * rows + y_col] = tile[threadIdx.x][threadIdx.y + k];
    }
}

using v1::launch;
}  // namespace v3

// ---------------------------------------------------------------------------------------------------
namespace v4 {
constexpr int SIDE = 16;  // a block has SIDE x SIDE threads, and its tile as many squares

// SIZE elements fill a vector, and a thread turns a square of SIZE x SIZE. rows and cols are multiples of SIZE.
template <class T>
__global__ void kernel(const T* x, T* y, int64_t rows, int64_t cols) {
    constexpr int SIZE = Vec<T>::SIZE, EDGE = SIDE * SIZE;
    __shared__ alignas(VEC_BYTES) T tile[EDGE][EDGE];  // as in y: its rows are columns of x
    const int across = threadIdx.x, down = threadIdx.y;
    const int64_t row = tile_row() * EDGE, col = tile_col() * EDGE;
    if (row + down * SIZE < rows && col + across * SIZE < cols) {
        Vec<T> square[SIZE];
#pragma unroll
        for (int k = 0; k < SIZE; ++k) square[k] = load_vec(x + (row + down * SIZE + k) * cols + col + across * SIZE);
#pragma unroll
        for (int k = 0; k < SIZE; ++k) {
            Vec<T> turned;
#pragma unroll
            for (int e = 0; e < SIZE; ++e) turned.at[e] = square[e].at[k];
            // Vector v of a row lies at v ^ its square: eight lanes that write below one another meet eight bank groups.
            store_vec(&tile[across * SIZE + k][(down ^ across) * SIZE], turned);
        }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SIZE; ++k) {
        const int r = k * SIDE + down;
        if (col + r < cols && row + across * SIZE < rows) {
            copy_vec(y + (col + r) * rows + row + across * SIZE, &tile[r][(across ^ r / SIZE) * SIZE]);
        }
    }
}

// Other shapes and addresses, where a row does not begin at a multiple of 16 bytes, go to version 3.
template <class T>
void launch(Kernel<T> kernel, const T* x, T* y, int64_t rows, int64_t cols, cudaStream_t stream) {
    constexpr int SIZE = Vec<T>::SIZE;
    if (rows % SIZE != 0 || cols % SIZE != 0 || !is_vec_aligned(x) || !is_vec_aligned(y)) {
        return v3::launch<T>(v3::kernel<T>, x, y, rows, cols, stream);
    }
    const dim3 grid = grid_for(rows, cols, SIDE * SIZE, SIDE * SIZE), block(SIDE, SIDE);
    kernel<<<grid, block, 0, stream>>>(x, y, rows, cols);
}
}  // namespace v4

// ---------------------------------------------------------------------------------------------------
// From a version and an element type at run time to a template instance.

template <class T>
const char* launch_as(int64_t version, const void* x, void* y, int64_t rows, int64_t cols, cudaStream_t stream) {
#define VERSION(number)                                                                                          \
    if constexpr (builds(number)) {                                                                              \
        if (version == number) {                                                                                 \
            if (rows == 0 || cols == 0) return nullptr; /* no grid is empty */                                   \
            v##number::launch<T>(v##number::kernel<T>, static_cast<const T*>(x), static_cast<T*>(y), rows, cols, \
                                 stream);                                                                        \
            return launch_error();                                                                               \
        }                                                                                                        \
    }
    VERSION(1)
    VERSION(2)
    VERSION(3)
    VERSION(4)
#undef VERSION
    return NO_SUCH_VERSION;
}

const char* transpose_forward(Element element, int64_t version, const void* x, void* y, int64_t rows, int64_t cols,
                              void* stream) {
    return with_type(element, [&](auto t) {
        return launch_as<typename decltype(t)::type>(version, x, y, rows, cols, static_cast<cudaStream_t>(stream));
    });
}
