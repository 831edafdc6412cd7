// Atomics across blocks, loads and stores with hints, vectors.
#include "export.h"

struct Totals {
    int add, sub, min, max, and_, or_, xor_, cas;
    unsigned unsigned_add, inc, exchanged;
    float float_add;
    unsigned long long long_add, long_max;
    double double_add;
};

__device__ void add_by_cas(int* address, int value) {
    int seen = *address, assumed;
    do {
        assumed = seen;
        seen = atomicCAS(address, assumed, assumed + value);
    } while (seen != assumed);
}

__global__ void atomics(Totals* t, int* previous) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    previous[i] = atomicAdd(&t->add, 1);
    atomicSub(&t->sub, 2);
    atomicMin(&t->min, -i);
    atomicMax(&t->max, i);
    atomicAnd(&t->and_, ~(1 << i % 31));
    atomicOr(&t->or_, 1 << i % 31);
    atomicXor(&t->xor_, i);
    add_by_cas(&t->cas, 3);
    atomicAdd(&t->unsigned_add, 5u);
    atomicInc(&t->inc, 6u);
    atomicExch(&t->exchanged, 9u);
    atomicAdd(&t->float_add, 0.5f);
    atomicAdd(&t->long_add, 1ull << 33);
    atomicMax(&t->long_max, static_cast<unsigned long long>(i) << 32);
    atomicAdd(&t->double_add, 0.25);
    __threadfence();
}
EXPORT int run_atomics(Totals* t, int* previous, int blocks, int threads) {
    atomics<<<blocks, threads>>>(t, previous);
    return cudaGetLastError();
}

// The last block to finish sums what all blocks wrote: no block waits for another.
__device__ unsigned finished = 0;
__global__ void last_block(const float* x, float* part, float* out, int n) {
    __shared__ float sum;
    __shared__ bool last;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&sum, x[i]);
    __syncthreads();
    if (threadIdx.x == 0) {
        part[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float total = 0;
        for (unsigned b = 0; b < gridDim.x; ++b) total += part[b];
        *out = total;
    }
}
EXPORT int run_last_block(const float* x, float* part, float* out, int n) {
    last_block<<<(n + 127) / 128, 128>>>(x, part, out, n);
    return cudaGetLastError();
}

__global__ void vectors(const float4* x, float4* y, const uint4* u, uint4* v, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 a = __ldcs(x + i), b = __ldg(x + i);
    __stcs(y + i, make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w));
    uint4 w = __ldcg(u + i);
    __stcg(v + i, uint4{w.w, w.z, w.y, w.x});
}
EXPORT int run_vectors(const float4* x, float4* y, const uint4* u, uint4* v, int n) {
    static_assert(alignof(float4) == 16 && alignof(uint4) == 16 && alignof(float2) == 8);
    static_assert(sizeof(float3) == 12 && sizeof(dim3) == 12);
    static_assert(alignof(double2) == 16 && alignof(uchar4) == 4 && alignof(short2) == 4);
    vectors<<<(n + 255) / 256, 256>>>(x, y, u, v, n);
    return cudaGetLastError();
}

// max, min, conversions, and intrinsics with a definite result.
__global__ void math(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float* row = out + 8 * i;
    row[0] = rsqrtf(x[i]), row[1] = __frcp_rn(x[i]), row[2] = __fmaf_rn(x[i], x[i], -1.0f);
    row[3] = __saturatef(x[i]), row[4] = max(min(x[i], 0.75f), 0.25f);
    row[5] = __uint_as_float(__float_as_uint(x[i]) ^ 0x80000000u);
    row[6] = __float2int_rn(x[i] * 1e3f), row[7] = __float2int_rz(x[i] * 1e30f);
}
EXPORT int run_math(const float* x, float* out, int n) {
    math<<<(n + 63) / 64, 64>>>(x, out, n);
    return cudaGetLastError();
}
