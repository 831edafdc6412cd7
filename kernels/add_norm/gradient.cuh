// The gradient of add_norm. With g = grad_y * weight and n = (h - mean) * rstd, the normalised row,
//
//   grad_x = grad_residual = rstd * (g - average(g) - n * average(g * n)) + grad_h,   averages over the row,
//   grad_weight = sum of grad_y * n,   grad_bias = sum of grad_y,                      sums over the rows.
//
// A block takes every parts-th row, writes its grad_x, and keeps the sums of its rows for each column; a second kernel adds the
// blocks' sums up. No atomics: the result has the same bits each time.
#pragma once

#include "launch.cuh"
#include "rows.cuh"

namespace gradient {
constexpr int EACH = 8;  // elements of a thread where a block has the row in registers
template <class T> constexpr int MOST_THREADS = 2048 / sizeof(T);  // of such a block: more, and their registers would not do
constexpr int STREAMING = 512;  // threads of a block where the row is too long for that, or is not in vectors
constexpr int ROWS_OF_PARTS = 16;  // that the threads of a column in the second kernel take at once

template <class T> struct Arrays {
    const T *grad_y, *grad_h, *h, *weight;
    const compute_t<T> *mean, *rstd;
    T *grad_x, *grad_weight, *grad_bias;
    compute_t<T>* parts;  // [2, parts, cols]: of grad_weight and of grad_bias
};

// How many blocks share the rows: few, since the second kernel reads what each writes, and more where they are small.
inline int64_t parts(int64_t rows, int64_t cols) {
    const int64_t most = cols <= 2048 ? 1024 : 256;
    return rows < most ? rows : most;
}

template <class T>
__global__ void __launch_bounds__(MOST_THREADS<T>) rows_in_registers(Arrays<T> a, int64_t rows, int64_t cols) {
    using F = compute_t<T>;
    constexpr int N = EACH, WIDTH = Vec<T>::SIZE;
    const F share = F(1) / cols;
    F of_weight[N] = {}, of_bias[N] = {};
    T weight[N];
    load_row<Block, WIDTH>(a.weight, cols, weight);
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const F mean = a.mean[row], rstd = a.rstd[row];
        T grad_y[N], h[N], result[N];  // result is grad_h as yet, which is needed last and on its way meanwhile
        load_row<Block, WIDTH>(a.grad_y + row * cols, cols, grad_y);
        load_row<Block, WIDTH>(a.h + row * cols, cols, h);
        load_row<Block, WIDTH>(a.grad_h + row * cols, cols, result);
        F sum = 0, sum_n = 0;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const F grad = to_compute(grad_y[k]), n = (to_compute(h[k]) - mean) * rstd, g = grad * to_compute(weight[k]);
            sum += g;
            sum_n += g * n;
            of_weight[k] += grad * n;
            of_bias[k] += grad;
        }
        // Two sums that take turns: between two uses of the same shared memory lies the other's barrier.
        sum = Block::sum<0>(sum) * share;
        sum_n = Block::sum<1>(sum_n) * share;
#pragma unroll
        for (int k = 0; k < N; ++k) {  // n and g once more: registers are scarcer than instructions
            const F n = (to_compute(h[k]) - mean) * rstd, g = to_compute(grad_y[k]) * to_compute(weight[k]);
            result[k] = to_element<T>(rstd * (g - sum - n * sum_n) + to_compute(result[k]));
        }
        store_row<Block, WIDTH>(a.grad_x + row * cols, cols, result);
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const int c = column<Block, WIDTH>(k);
        if (c >= cols) continue;
        a.parts[blockIdx.x * cols + c] = of_weight[k];
        a.parts[(gridDim.x + blockIdx.x) * cols + c] = of_bias[k];
    }
}

template <class T>
__global__ void rows_in_memory(Arrays<T> a, int64_t rows, int64_t cols) {
    using F = compute_t<T>;
    F *of_weight = a.parts + blockIdx.x * cols, *of_bias = of_weight + gridDim.x * cols;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const F mean = a.mean[row], rstd = a.rstd[row];
        const int64_t at = row * cols;
        F sum = 0, sum_n = 0;
        for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
            const F g = to_compute(a.grad_y[at + c]) * to_compute(a.weight[c]);
            sum += g;
            sum_n += g * ((to_compute(a.h[at + c]) - mean) * rstd);
        }
        sum = Block::sum<0>(sum) / cols;
        sum_n = Block::sum<1>(sum_n) / cols;
        for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
            const F grad = to_compute(a.grad_y[at + c]), n = (to_compute(a.h[at + c]) - mean) * rstd;
            const F g = grad * to_compute(a.weight[c]);
            a.grad_x[at + c] = to_element<T>(rstd * (g - sum - n * sum_n) + to_compute(a.grad_h[at + c]));
            const bool first = row == blockIdx.x;
            of_weight[c] = (first ? 0 : of_weight[c]) + grad * n;
            of_bias[c] = (first ? 0 : of_bias[c]) + grad;
        }
    }
}

// A warp has 32 columns, and the block's warps take turns at the parts.
template <class T>
__global__ void sum_of_parts(Arrays<T> a, int64_t parts, int64_t cols) {
    using F = compute_t<T>;
    __shared__ F of_weight[ROWS_OF_PARTS][LANES], of_bias[ROWS_OF_PARTS][LANES];
    const int lane = threadIdx.x, warp = threadIdx.y;
    const int64_t c = int64_t(blockIdx.x) * LANES + lane;
    F weight = 0, bias = 0;
    for (int64_t p = warp; p < parts && c < cols; p += ROWS_OF_PARTS) {
        weight += a.parts[p * cols + c];
        bias += a.parts[(parts + p) * cols + c];
    }
    of_weight[warp][lane] = weight;
    of_bias[warp][lane] = bias;
    __syncthreads();
    if (warp > 0 || c >= cols) return;
    for (int w = 1; w < ROWS_OF_PARTS; ++w) {
        weight += of_weight[w][lane];
        bias += of_bias[w][lane];
    }
    a.grad_weight[c] = to_element<T>(weight);
    a.grad_bias[c] = to_element<T>(bias);
}

// cols is at least 1.
template <class T>
void launch(const Arrays<T>& a, int64_t rows, int64_t cols, cudaStream_t stream) {
    const unsigned blocks = parts(rows, cols), threads = divide_up(cols, EACH * LANES) * LANES;
    if (blocks == 0) {
        // There are no rows, and a sum of nothing is 0.
    } else if (cols <= EACH * MOST_THREADS<T> && in_vectors<T>(cols, a.grad_y, a.grad_h, a.h, a.weight, a.grad_x)) {
        rows_in_registers<<<blocks, threads, 0, stream>>>(a, rows, cols);
    } else {
        rows_in_memory<<<blocks, STREAMING, 0, stream>>>(a, rows, cols);
    }
    const unsigned groups = divide_up(cols, LANES);
    sum_of_parts<<<groups, dim3(LANES, ROWS_OF_PARTS), 0, stream>>>(a, blocks, cols);
}
}  // namespace gradient
