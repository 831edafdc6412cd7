// Kernels that are wrong, each in one way, and the same ones mended (FIXED). Tests look for the lines marked // @name.
#include "export.h"

template <bool FIXED> __global__ void barrier_before_read(const float* x, float* y) {
    __shared__ float tile[256];
    tile[threadIdx.x] = x[threadIdx.x];
    if constexpr (FIXED) __syncthreads();
    y[threadIdx.x] = tile[255 - threadIdx.x];  // @barrier_before_read
}

template <bool FIXED> __global__ void barrier_before_reuse(const float* x, float* y, int n) {
    __shared__ float tile[256];
    float sum = 0;
    for (int first = 0; first < n; first += 256) {
        tile[threadIdx.x] = x[first + threadIdx.x];  // @barrier_before_reuse
        __syncthreads();
        sum += tile[255 - threadIdx.x];
        if constexpr (FIXED) __syncthreads();
    }
    y[threadIdx.x] = sum;
}

template <bool FIXED> __global__ void divergent_barrier(const float* x, float* y) {
    __shared__ float tile[64];
    if (threadIdx.x < 64) {
        tile[threadIdx.x] = x[threadIdx.x];
        if constexpr (!FIXED) __syncthreads();  // @divergent_barrier
    }
    if constexpr (FIXED) __syncthreads();
    if (threadIdx.x < 64) y[threadIdx.x] = tile[63 - threadIdx.x];
}

template <bool FIXED> __global__ void early_return(const float* x, float* y, int n) {
    __shared__ float tile[256];
    const int i = threadIdx.x;
    if constexpr (!FIXED)
        if (i >= n) return;
    tile[i] = i < n ? x[i] : 0;
    __syncthreads();  // @early_return
    if (i < n) y[i] = tile[n - 1 - i];
}

template <bool FIXED> __global__ void past_the_end(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (FIXED ? i < n : i <= n) y[i] = 2 * x[i < n ? i : 0];  // @past_the_end
}

template <bool FIXED> __global__ void tail_left_out(const float* x, float* y, int n) {
    const int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (FIXED ? i < n : i + 3 < n)
        for (int k = i; k < i + 4 && k < n; ++k) y[k] = x[k];  // @tail_left_out
}

template <bool FIXED> __global__ void warp_sum(const float* x, float* y) {
    __shared__ volatile float sums[64];
    const int t = threadIdx.x;
    sums[t] = x[t];
    sums[t + 32] = 0;
    for (int s = 16; s > 0; s /= 2) {
        if constexpr (FIXED) __syncwarp();
        const float other = sums[t + s];  // @warp_sum
        if constexpr (FIXED) __syncwarp();
        sums[t] = sums[t] + other;
    }
    if (t == 0) *y = sums[0];
}

template <bool FIXED> __global__ void blocks_add(const float* x, float* y) {
    if constexpr (FIXED)
        atomicAdd(y, x[blockIdx.x]);
    else
        *y = *y + x[blockIdx.x];  // @blocks_add
}

// ---- further kinds ----

template <bool FIXED> __global__ void writes_twice(float* y) {  // two threads of a block, one element, global memory
    if (threadIdx.x < (FIXED ? 1 : 2)) y[0] = 1.0f;  // @writes_twice
}

template <bool FIXED> __global__ void misaligned(const float* x, float* y) {
    const float* from = FIXED ? x : x + 1;
    *reinterpret_cast<float4*>(y) = *reinterpret_cast<const float4*>(from);  // @misaligned
}

template <bool FIXED> __global__ void beyond_shared(const float* x, float* y) {
    __shared__ float tile[32], other[32];
    other[threadIdx.x] = x[threadIdx.x];
    tile[FIXED ? threadIdx.x : threadIdx.x + 1] = x[threadIdx.x];  // @beyond_shared
    __syncthreads();
    y[threadIdx.x] = FIXED ? tile[threadIdx.x] + other[threadIdx.x] : other[threadIdx.x];
}

template <bool FIXED> __global__ void beyond_dynamic(const float* x, float* y) {
    extern __shared__ float memory[];
    memory[threadIdx.x + (FIXED ? 0 : 1)] = x[threadIdx.x];  // @beyond_dynamic
    __syncthreads();
    y[threadIdx.x] = memory[FIXED || threadIdx.x ? threadIdx.x : 1];
}

template <bool FIXED> __global__ void reads_unwritten(const float* x, float* y) {
    __shared__ float tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    if (FIXED) tile[threadIdx.x + 32] = 0;
    __syncthreads();
    y[threadIdx.x] = tile[63 - threadIdx.x];  // @reads_unwritten
}

template <bool FIXED> __global__ void reads_output(const float* x, float* y) {
    if (FIXED) y[threadIdx.x] = 0;
    y[threadIdx.x] += x[threadIdx.x];  // @reads_output
}

template <bool FIXED> __global__ void writes_input(float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
    if (!FIXED) x[threadIdx.x] = 0;  // @writes_input
}

template <bool FIXED> __global__ void far_away(const float* x, float* y) {
    y[FIXED ? threadIdx.x : 1ll << 30] = x[threadIdx.x];  // @far_away
}

template <bool FIXED> __global__ void null_pointer(const float* x, float* y) {
    y[threadIdx.x] = FIXED ? x[threadIdx.x] : static_cast<const float*>(nullptr)[threadIdx.x];  // @null_pointer
}

template <bool FIXED> __global__ void shuffle_is_no_barrier(const float* x, float* y) {
    __shared__ float tile[32];
    tile[threadIdx.x] = x[threadIdx.x];
    const float own = __shfl_sync(0xffffffffu, x[threadIdx.x], threadIdx.x);
    if (FIXED) __syncwarp();
    y[threadIdx.x] = own + tile[31 - threadIdx.x];  // @shuffle_is_no_barrier
}

template <bool FIXED> __global__ void half_a_warp_waits(const float* x, float* y) {
    __shared__ float tile[32];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncwarp(FIXED || threadIdx.x < 16 ? FIXED ? 0xffffffffu : 0xffffu : 0xffff0000u);
    y[threadIdx.x] = tile[31 - threadIdx.x];  // @half_a_warp_waits
}

template <bool FIXED> __global__ void shuffle_after_return(const float* x, float* y) {
    if (!FIXED && threadIdx.x >= 24) return;
    const float other = __shfl_down_sync(0xffffffffu, x[threadIdx.x], 8);  // @shuffle_after_return
    if (threadIdx.x < 24) y[threadIdx.x] = other;
}

template <bool FIXED> __global__ void shuffle_beyond_mask(const float* x, float* y) {
    const unsigned mask = FIXED ? 0xffffffffu : threadIdx.x < 16 ? 0xffffu : 0xffff0000u;
    y[threadIdx.x] = __shfl_xor_sync(mask, x[threadIdx.x], 16);  // @shuffle_beyond_mask
}

template <bool FIXED> __global__ void shuffle_of_no_thread(const float* x, float* y) {  // a block of 20
    y[threadIdx.x] = __shfl_sync(0xffffffffu, x[threadIdx.x], FIXED ? 19 : 20);  // @shuffle_of_no_thread
}

template <bool FIXED> __global__ void count_is_read_early(int* y) {
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    atomicAdd(&count, 1);
    if (FIXED) __syncthreads();
    if (threadIdx.x == 0) *y = count;  // @count_is_read_early
}

// The last block to finish adds up what all have written: right with the atomic, a race without.
template <bool FIXED> __global__ void last_block(float* parts, int* tickets, float* y) {
    __shared__ bool is_last;
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = 1.0f;
        __threadfence();
        is_last = FIXED ? atomicAdd(tickets, 1) == int(gridDim.x) - 1 : blockIdx.x == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last || threadIdx.x >= gridDim.x) return;
    y[threadIdx.x] = parts[threadIdx.x];  // @last_block
}

// The last block is right only if all threads' stores come before the ticket that tells of them.
template <bool FIXED> __global__ void ticket_without_barrier(float* parts, int* tickets, float* y) {
    __shared__ bool is_last;
    parts[blockIdx.x * blockDim.x + threadIdx.x] = 1.0f;
    __threadfence();
    if (FIXED) __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(tickets, 1) == int(gridDim.x) - 1;
    __syncthreads();
    if (!is_last) return;
    float sum = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += parts[b * blockDim.x + threadIdx.x];  // @ticket_without_barrier
    y[threadIdx.x] = sum;
}

template <bool FIXED> __global__ void ticket_before_store(float* parts, int* tickets, float* y) {
    if (FIXED) parts[blockIdx.x] = 1.0f;
    const int ticket = atomicAdd(tickets, 1);
    if (!FIXED) parts[blockIdx.x] = 1.0f;
    if (ticket == int(gridDim.x) - 1)
        for (unsigned b = 0; b < gridDim.x; ++b) y[b] = parts[b];  // @ticket_before_store
}

// Pairs of blocks have a ticket each, and the later one of a pair takes one of a second level.
template <bool FIXED> __global__ void ticket_of_tickets(float* parts, int* tickets, float* y) {
    parts[blockIdx.x] = 1.0f;
    if (atomicAdd(tickets + blockIdx.x / 2, 1) == 0) return;
    const int ticket = FIXED ? atomicAdd(tickets + 7, 1) : int(blockIdx.x / 2);
    if (ticket == int(gridDim.x) / 2 - 1)
        for (unsigned b = 0; b < gridDim.x; ++b) y[b] = parts[b];  // @ticket_of_tickets
}

// An atomic on something else orders nothing.
template <bool FIXED> __global__ void other_atomic(float* x, int* counter, float* y) {
    atomicAdd(counter, 1);
    if (FIXED) atomicAdd(y, x[blockIdx.x]);
    else *y = *y + x[blockIdx.x];  // @other_atomic
}

template <bool FIXED> __global__ void store_then_atomic(int* y) {
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;  // @store_then_atomic
    if (FIXED) __syncthreads();
    atomicAdd(&count, 1);
    __syncthreads();
    if (threadIdx.x == 0) *y = count;
}

template <bool FIXED> __global__ void store_of_one_block_and_atomics(float* y) {
    if (!FIXED && blockIdx.x + threadIdx.x == 0) *y = 0;  // @store_of_one_block_and_atomics
    atomicAdd(y, 1.0f);
}

template <bool FIXED> __global__ void read_by_all_blocks(float* x, float* y) {
    y[blockIdx.x * blockDim.x + threadIdx.x] = x[0];
    __syncthreads();
    if (!FIXED && blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) x[0] = 1;  // @read_by_all_blocks
}

template <bool FIXED> __global__ void two_barriers(const float* x, float* y) {
    if (FIXED || threadIdx.x < 32) {
        __syncthreads();  // @two_barriers
    } else {
        __syncthreads();
    }
    y[threadIdx.x] = x[threadIdx.x];
}

#define RUN(name, grid, block, shared, ...)                                                 \
    EXPORT int run_##name(float* x, float* y, int n, int fixed) {                           \
        if (fixed) name<true><<<grid, block, shared>>>(__VA_ARGS__);                        \
        else name<false><<<grid, block, shared>>>(__VA_ARGS__);                             \
        return cudaGetLastError();                                                          \
    }
RUN(barrier_before_read, 1, 256, 0, x, y)
RUN(barrier_before_reuse, 1, 256, 0, x, y, n)
RUN(divergent_barrier, 1, 128, 0, x, y)
RUN(early_return, 1, 256, 0, x, y, n)
RUN(past_the_end, (n + 255) / 256, 256, 0, x, y, n)
RUN(tail_left_out, (n + 1023) / 1024, 256, 0, x, y, n)
RUN(warp_sum, 1, 32, 0, x, y)
RUN(blocks_add, 4, 1, 0, x, y)
RUN(writes_twice, 1, 32, 0, y)
RUN(misaligned, 1, 1, 0, x, y)
RUN(beyond_shared, 1, 32, 0, x, y)
RUN(beyond_dynamic, 1, 32, 128, x, y)
RUN(reads_unwritten, 1, 32, 0, x, y)
RUN(reads_output, 1, 32, 0, x, y)
RUN(writes_input, 1, 32, 0, x, y)
RUN(far_away, 1, 32, 0, x, y)
RUN(null_pointer, 1, 32, 0, x, y)
RUN(shuffle_is_no_barrier, 1, 32, 0, x, y)
RUN(half_a_warp_waits, 1, 32, 0, x, y)
RUN(shuffle_after_return, 1, 32, 0, x, y)
RUN(shuffle_beyond_mask, 1, 32, 0, x, y)
RUN(shuffle_of_no_thread, 1, 20, 0, x, y)
RUN(count_is_read_early, 1, 64, 0, reinterpret_cast<int*>(y))
RUN(last_block, 8, 32, 0, x, reinterpret_cast<int*>(x) + 8, y)
RUN(ticket_without_barrier, 4, 64, 0, x, reinterpret_cast<int*>(x) + 512, y)
RUN(ticket_before_store, 8, 1, 0, x, reinterpret_cast<int*>(x) + 512, y)
RUN(ticket_of_tickets, 8, 1, 0, x, reinterpret_cast<int*>(x) + 512, y)
RUN(other_atomic, 8, 1, 0, x, reinterpret_cast<int*>(x) + 512, y)
RUN(store_then_atomic, 1, 64, 0, reinterpret_cast<int*>(y))
RUN(store_of_one_block_and_atomics, 4, 32, 0, y)
RUN(read_by_all_blocks, 4, 32, 0, x, y)
RUN(two_barriers, 1, 64, 0, x, y)
