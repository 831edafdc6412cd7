// Kernels that do nothing but fused multiply-adds: the most of them that a GPU does in a second, in each type of number.
//
// They are no operators and run on a GPU alone. `labkit.roofline` compiles them with NVRTC, the compiler for run time, which
// needs no header; so the operations on two 16-bit numbers at a time are written as the PTX instructions that they are.

// Every thread has CHAINS sums that do not wait for one another, so that a unit always finds one that is ready.
constexpr int CHAINS = 8;

__device__ float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ double multiply_add(double a, double b, double c) { return __fma_rn(a, b, c); }

struct Half2 { unsigned bits; };
__device__ Half2 multiply_add(Half2 a, Half2 b, Half2 c) {
    Half2 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d.bits) : "r"(a.bits), "r"(b.bits), "r"(c.bits));
    return d;
}

#if __CUDA_ARCH__ >= 800  // no older GPU computes in bfloat16
struct Bfloat162 { unsigned bits; };
__device__ Bfloat162 multiply_add(Bfloat162 a, Bfloat162 b, Bfloat162 c) {
    Bfloat162 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d.bits) : "r"(a.bits), "r"(b.bits), "r"(c.bits));
    return d;
}
#endif

// Adds 1 `passes` times to each sum, which begins at 0. ones: 1024 times 1, from memory, so that the compiler cannot know it.
// result[k * threads + thread] gets the thread's sum k.
template <class Number>
__device__ void add_ones(const Number* ones, int passes, Number* result) {
    const Number factor = ones[threadIdx.x], term = ones[1023 - threadIdx.x];
    Number sum[CHAINS] = {};
#pragma unroll 32  // the loop's own instructions would count
    for (int p = 0; p < passes; ++p) {
#pragma unroll
        for (Number& s : sum) s = multiply_add(s, factor, term);
    }
    const int thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
#pragma unroll
    for (int k = 0; k < CHAINS; ++k) result[k * threads + thread] = sum[k];
}

extern "C" __global__ void peak_float32(const float* ones, int passes, float* result) { add_ones(ones, passes, result); }
extern "C" __global__ void peak_float64(const double* ones, int passes, double* result) { add_ones(ones, passes, result); }
extern "C" __global__ void peak_float16(const Half2* ones, int passes, Half2* result) { add_ones(ones, passes, result); }
#if __CUDA_ARCH__ >= 800
extern "C" __global__ void peak_bfloat16(const Bfloat162* ones, int passes, Bfloat162* result) {
    add_ones(ones, passes, result);
}
#endif
