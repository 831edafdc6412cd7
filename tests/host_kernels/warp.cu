// Shuffles, votes, matches and bit counting.
#include "export.h"

// kind 0 to 3: __shfl_sync, _up, _down, _xor. One result a thread.
template <class T>
__global__ void shuffle(const T* x, T* out, int kind, int argument, int width) {
    int i = threadIdx.x + blockDim.x * threadIdx.y;
    T v = x[i];
    if (kind == 0) v = __shfl_sync(0xffffffffu, v, argument, width);
    if (kind == 1) v = __shfl_up_sync(0xffffffffu, v, argument, width);
    if (kind == 2) v = __shfl_down_sync(0xffffffffu, v, argument, width);
    if (kind == 3) v = __shfl_xor_sync(0xffffffffu, v, argument, width);
    out[i] = v;
}
#define SHUFFLE(name, T)                                                                            \
    EXPORT int shuffle_##name(const T* x, T* out, int kind, int argument, int width, int bx, int by) { \
        shuffle<<<1, dim3(bx, by)>>>(x, out, kind, argument, width);                                   \
        return cudaGetLastError();                                                                  \
    }
SHUFFLE(int, int)
SHUFFLE(unsigned, unsigned)
SHUFFLE(long, long long)
SHUFFLE(float, float)
SHUFFLE(double, double)

// Sum of each warp's values by four kinds of loop; out: 4 sums a warp.
__global__ void warp_sums(const float* x, float* out) {
    const unsigned full = 0xffffffffu;
    int lane = threadIdx.x % warpSize;
    float start = x[threadIdx.x], down = start, butterfly = start, scan = start, first = 0;
    for (int step = 16; step > 0; step /= 2) down += __shfl_down_sync(full, down, step);
    for (int step = 16; step > 0; step /= 2) butterfly += __shfl_xor_sync(full, butterfly, step);
    for (int step = 1; step < 32; step *= 2) {
        float other = __shfl_up_sync(full, scan, step);
        if (lane >= step) scan += other;
    }
    for (int i = 0; i < 32; ++i) first += __shfl_sync(full, start, i);
    float* row = out + threadIdx.x / 32 * 4;
    if (lane == 0) row[0] = down, row[1] = butterfly, row[3] = first;
    if (lane == 31) row[2] = scan;
}
EXPORT int run_warp_sums(const float* x, float* out, int threads) {
    warp_sums<<<1, threads>>>(x, out);
    return cudaGetLastError();
}

// Two halves of a warp work apart, each with a mask of its own; the last warp may be partial.
__global__ void halves(unsigned* out) {
    unsigned lane = threadIdx.x % 32, mask = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    unsigned sum = lane;
    if (lane < 16) {
        for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(mask, sum, step);
    } else {
        for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(mask, sum, step);
        __syncwarp(mask);
    }
    __syncwarp();
    unsigned* row = out + 8 * threadIdx.x;
    row[0] = sum;
    row[1] = __ballot_sync(0xffffffffu, lane % 3 == 0);
    row[2] = __any_sync(0xffffffffu, lane == 5);
    row[3] = __all_sync(0xffffffffu, lane < 20);
    row[4] = __match_any_sync(0xffffffffu, lane % 4);
    row[5] = __popc(__activemask());
    row[6] = __activemask() >> lane & 1;
    int same, differ;
    row[7] = __match_all_sync(0xffffffffu, 7, &same);
    row[7] = same && __match_all_sync(0xffffffffu, lane, &differ) == 0 && !differ ? row[7] : 0;
}
EXPORT int run_halves(unsigned* out, int threads) {
    halves<<<1, threads>>>(out);
    return cudaGetLastError();
}

// Odd lanes leave; the others shuffle from the lane above them, which is gone.
__global__ void from_the_dead(float* out) {
    if (threadIdx.x % 2) return;
    out[threadIdx.x] = __shfl_down_sync(0xffffffffu, 1.0f, 1);
}
EXPORT int run_from_the_dead(float* out) {
    from_the_dead<<<1, 32>>>(out);
    return cudaGetLastError();
}

__global__ void bits(const unsigned* x, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int* row = out + 8 * i;
    unsigned long long wide = static_cast<unsigned long long>(x[i]) << 16;
    row[0] = __popc(x[i]), row[1] = __ffs(x[i]), row[2] = __clz(x[i]), row[3] = __brev(x[i]);
    row[4] = __popcll(wide), row[5] = __ffsll(wide), row[6] = __clzll(wide), row[7] = __umulhi(x[i], x[i]);
}
EXPORT int run_bits(const unsigned* x, int* out, int n) {
    bits<<<(n + 127) / 128, 128>>>(x, out, n);
    return cudaGetLastError();
}
