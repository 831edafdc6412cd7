// A matrix in tiles, one a block: which tile a block has, and the grid of blocks that have them all.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "launch.cuh"

// The grid's y ends at 65535, so further rows of tiles are in its z.
__device__ inline int64_t tile_row() { return int64_t(blockIdx.z) * gridDim.y + blockIdx.y; }
__device__ inline int64_t tile_col() { return blockIdx.x; }

// For a matrix of rows x cols, neither of them 0, in tiles of tile_rows x tile_cols.
inline dim3 grid_for(int64_t rows, int64_t cols, int tile_rows, int tile_cols) {
    const int64_t across = divide_up(cols, tile_cols), down = divide_up(rows, tile_rows);
    const int64_t z = divide_up(down, 65535);
    return dim3(across, divide_up(down, z), z);
}
