// Launches whose result shows in which order their threads ran.
#include "export.h"

__global__ void who_is_last(int* y) { *y = blockIdx.x * blockDim.x + threadIdx.x; }

__global__ void order_of_threads(int* y, int* next) { y[(*next)++] = threadIdx.x; }

__global__ void order_after_barrier(int* y, int* next) {
    __syncthreads();
    y[(*next)++] = threadIdx.x;
}

__global__ void order_of_blocks(int* y, int* next) { y[(*next)++] = blockIdx.x; }

__global__ void after_shuffle(int* y, int* next) {
    __shfl_sync(0xffffffffu, 1, 0);
    y[(*next)++] = threadIdx.x;
}

#define RUN(name, grid, block)                                       \
    EXPORT int run_##name(int* y, int* next, unsigned g, unsigned b) { \
        name<<<g, b>>>(y, next);                                     \
        return cudaGetLastError();                                   \
    }
RUN(order_of_threads, g, b)
RUN(order_after_barrier, g, b)
RUN(order_of_blocks, g, b)
RUN(after_shuffle, g, b)
EXPORT int run_who_is_last(int* y, unsigned g, unsigned b) { return who_is_last<<<g, b>>>(y), cudaGetLastError(); }
