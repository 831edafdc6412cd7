// Shared memory, static and dynamic, and barriers.
#include "export.h"

template <int THREADS>
__global__ void __launch_bounds__(THREADS) sum_static(const float* x, float* out, int n) {
    __shared__ float part[THREADS], total;
    int i = blockIdx.x * THREADS + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int step = THREADS / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) total = part[0];
    __syncthreads();
    if (threadIdx.x == THREADS - 1) out[blockIdx.x] = total;
}

template <class T>
__global__ void sum_dynamic(const T* x, T* out, int n) {
    extern __shared__ __align__(16) unsigned char memory[];
    T* part = reinterpret_cast<T*>(memory);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : T(0);
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

EXPORT int run_sum_static(const float* x, float* out, int n) {
    sum_static<256><<<(n + 255) / 256, 256>>>(x, out, n);
    return cudaGetLastError();
}
EXPORT int run_sum_dynamic(const double* x, double* out, int n, int threads) {
    sum_dynamic<<<(n + threads - 1) / threads, threads, threads * sizeof(double)>>>(x, out, n);
    return cudaGetLastError();
}

// (rows, columns) to (columns, rows), through padded tiles.
__global__ void transpose(const float* x, float* y, int rows, int columns) {
    __shared__ float tile[32][33];
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (c < columns && r + k < rows) tile[threadIdx.y + k][threadIdx.x] = x[(r + k) * columns + c];
    __syncthreads();
    c = blockIdx.y * 32 + threadIdx.x, r = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (c < rows && r + k < columns) y[(r + k) * rows + c] = tile[threadIdx.x][threadIdx.y + k];
}
EXPORT int run_transpose(const float* x, float* y, int rows, int columns) {
    transpose<<<dim3((columns + 31) / 32, (rows + 31) / 32), dim3(32, 8)>>>(x, y, rows, columns);
    return cudaGetLastError();
}

// Half of each block leaves before the barriers; count, and, or over the rest.
__global__ void votes(int* out) {
    if (threadIdx.x % 2) return;
    int count = __syncthreads_count(threadIdx.x < 10);
    int all = __syncthreads_and(threadIdx.x % 2 == 0), not_all = __syncthreads_and(threadIdx.x != 4);
    int any = __syncthreads_or(threadIdx.x == 6), none = __syncthreads_or(threadIdx.x == 7);
    int* row = out + 5 * (threadIdx.x / 2);
    row[0] = count, row[1] = all, row[2] = not_all, row[3] = any, row[4] = none;
}
EXPORT int run_votes(int* out, int threads) {
    votes<<<1, threads>>>(out);
    return cudaGetLastError();
}

// Thread t reads what thread t + 1 wrote, `rounds` times.
__global__ void rotate(int* out, int rounds) {
    extern __shared__ int values[];
    values[threadIdx.x] = threadIdx.x;
    for (int i = 0; i < rounds; ++i) {
        __syncthreads();
        int next = values[(threadIdx.x + 1) % blockDim.x];
        __syncthreads();
        values[threadIdx.x] = next;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = values[threadIdx.x];
}
EXPORT int run_rotate(int* out, int blocks, int threads, int rounds) {
    rotate<<<blocks, threads, threads * sizeof(int)>>>(out, rounds);
    return cudaGetLastError();
}

// Reads shared memory that nobody has written in this block; the block before left zeros there.
__global__ void unwritten(float* out) {
    __shared__ float fixed[4];
    extern __shared__ float moving[][2];
    out[2 * blockIdx.x] = fixed[0] + 1, out[2 * blockIdx.x + 1] = moving[1][1] + 1;
    for (int i = 0; i < 4; ++i) fixed[i] = 0, moving[i / 2][i % 2] = 0;
}
EXPORT int run_unwritten(float* out, int blocks) {
    unwritten<<<blocks, 1, 4 * sizeof(float)>>>(out);
    return cudaGetLastError();
}
