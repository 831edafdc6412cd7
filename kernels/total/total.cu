// The sum of each row of a matrix and the sum of them all, which no block can form before all blocks have done their part.
//
//   v1  two launches: the second one, of one block, adds up what the first one has written
//   v2  one launch: each block takes a ticket when its row is done, and the one with the last ticket adds up
//
// x: [rows, cols], sums: [rows], total: [1]. A block of 256 threads adds up one row.
#include "launch.cuh"
#include "total.h"

constexpr int THREADS = 256;
constexpr int LANES = 32;
constexpr int WARPS = THREADS / LANES;

// Thread 0 gets the sum over the block; all threads take part, and between two calls lies a barrier.
template <class T>
__device__ T sum_of_block(T sum) {
    __shared__ T part[WARPS];
    const unsigned t = threadIdx.x;
    for (int s = LANES / 2; s > 0; s /= 2) sum += __shfl_down_sync(0xffffffff, sum, s);
    if (t % LANES == 0) part[t / LANES] = sum;
    __syncthreads();
    if (t >= LANES) return 0;  // the first warp goes on, whole
    sum = t < WARPS ? part[t] : 0;
    for (int s = WARPS / 2; s > 0; s /= 2) sum += __shfl_down_sync(0xffffffff, sum, s);
    return sum;
}

// The sum over values[0 ... n - 1]; thread 0 gets it.
template <class T>
__device__ T sum_of(const T* values, int64_t n) {
    T sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) sum += values[i];
    return sum_of_block(sum);
}

// ---------------------------------------------------------------------------------------------------
namespace v1 {
template <class T>
__global__ void rows_kernel(const T* x, T* sums, int64_t cols) {
    const T sum = sum_of(x + blockIdx.x * cols, cols);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class T>
__global__ void total_kernel(const T* sums, T* total, int64_t rows) {
    const T sum = sum_of(sums, rows);
    if (threadIdx.x == 0) *total = sum;
}

template <class T>
void launch(const T* x, T* sums, T* total, unsigned* tickets, int64_t rows, int64_t cols, cudaStream_t stream) {
    const unsigned blocks = rows;
    if (blocks) rows_kernel<<<blocks, THREADS, 0, stream>>>(x, sums, cols);
    total_kernel<<<1, THREADS, 0, stream>>>(sums, total, rows);
}
}  // namespace v1

// ---------------------------------------------------------------------------------------------------
namespace v2 {
template <class T>
__global__ void kernel(const T* x, T* sums, T* total, unsigned* tickets, int64_t cols) {
    __shared__ bool is_last;
    const T sum = sum_of(x + blockIdx.x * cols, cols);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = sum;
        __threadfence();  // others see the sum before they see the ticket that tells of it
        is_last = atomicAdd(tickets, 1u) == gridDim.x - 1;
        __threadfence();  // and the last one reads after it has seen all tickets
    }
    __syncthreads();
    if (!is_last) return;
    const T all = sum_of(sums, gridDim.x);
    if (threadIdx.x == 0) *total = all;
}

template <class T>
void launch(const T* x, T* sums, T* total, unsigned* tickets, int64_t rows, int64_t cols, cudaStream_t stream) {
    if (rows == 0) return v1::launch(x, sums, total, tickets, rows, cols, stream);  // no block is the last
    const unsigned blocks = rows;
    kernel<<<blocks, THREADS, 0, stream>>>(x, sums, total, tickets, cols);
}
}  // namespace v2

// ---------------------------------------------------------------------------------------------------
// From a version and an element type at run time to a template instance.

template <class T>
const char* launch_as(int64_t version, const void* x, void* sums, void* total, unsigned* tickets, int64_t rows,
                      int64_t cols, cudaStream_t stream) {
#define VERSION(number)                                                                                          \
    if constexpr (builds(number)) {                                                                              \
        if (version == number) {                                                                                 \
            v##number::launch<T>(static_cast<const T*>(x), static_cast<T*>(sums), static_cast<T*>(total), tickets, \
                                 rows, cols, stream);                                                            \
            return launch_error();                                                                               \
        }                                                                                                        \
    }
    VERSION(1)
    VERSION(2)
#undef VERSION
    return NO_SUCH_VERSION;
}

const char* total_forward(Element element, int64_t version, const void* x, void* sums, void* total, void* tickets,
                          int64_t rows, int64_t cols, void* stream) {
    const auto launch = element == Element::float32 ? launch_as<float> : launch_as<double>;
    return launch(version, x, sums, total, static_cast<unsigned*>(tickets), rows, cols, static_cast<cudaStream_t>(stream));
}
