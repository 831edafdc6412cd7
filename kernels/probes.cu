// Kernels that measure the memory system: how long one access takes, and how many bytes a second each level delivers.
//
// They are no operators and run on a GPU alone. `labkit.levels` and `labkit.in_flight` compile them with NVRTC, the compiler
// for run time, which needs no header. Each writes what it has read, so that the compiler keeps the reads and a test can see
// that all of them took place.

// To nvcc, what stands before stays before, what stands after stays after, and `value` is known by then. The assembler sees
// nothing here: the last load of a chain may still be on its way when the clock is read, one step of all.
__device__ void wait_for(unsigned value) { asm volatile("" : : "r"(value) : "memory"); }

// ---- latency: one thread, and each step needs the result of the one before ----------------------------------------------

// chain: addresses, each of the next one: a cycle. The first `unmeasured` steps bring it into the caches. result[0] gets the
// clocks that the `steps` after them took, result[1] the index in `chain` where they end.
extern "C" __global__ void chase_global(const long long* chain, int unmeasured, int steps, long long* result) {
    const long long* at = chain;
    for (int k = 0; k < unmeasured; ++k) at = reinterpret_cast<const long long*>(__ldca(at));
    wait_for(at - chain);
    const long long begin = clock64();
    for (int k = 0; k < steps; ++k) at = reinterpret_cast<const long long*>(__ldca(at));
    wait_for(at - chain);
    result[0] = clock64() - begin;
    result[1] = at - chain;
}

// The same in shared memory, along a cycle of 1024 words. They hold byte offsets, so that a step is one load and nothing else.
extern "C" __global__ void chase_shared(int steps, long long* result) {
    __shared__ int next[1024];
    for (int i = 0; i < 1024; ++i) next[i] = (i + 1) % 1024 * 4;
    int at = 0;
    wait_for(at);
    const long long begin = clock64();
    for (int k = 0; k < steps; ++k) at = *reinterpret_cast<const int*>(reinterpret_cast<const char*>(next) + at);
    wait_for(at);
    result[0] = clock64() - begin;
    result[1] = at / 4;
}

// The same in registers: a step is one multiply-add. `one` comes from outside, so that the compiler cannot foresee the sum.
extern "C" __global__ void chase_register(int one, int steps, long long* result) {
    float sum = 0;
    const float step = one;
    const long long begin = clock64();
#pragma unroll 128  // the loop's own instructions would count
    for (int k = 0; k < steps; ++k) sum = __fmaf_rn(sum, step, step);
    wait_for(__float_as_uint(sum));
    result[0] = clock64() - begin;
    result[1] = static_cast<long long>(sum);
}

// ---- bandwidth: all threads, LOADS loads of 16 bytes and then a wait for them; result[thread] gets the sum of the words that
// a thread has read. `vectors` is always a multiple of LOADS and of the threads that share them. --------------------------

__device__ unsigned sum_of(uint4 v) { return v.x + v.y + v.z + v.w; }
__device__ int thread_of_grid() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ int threads_of_grid() { return gridDim.x * blockDim.x; }

// `passes` times over `vectors` vectors: this thread reads `first` and every `step`th after it. load(i): the vector i. With 8
// loads some compilers wait for the first before they issue the last (seen in SASS), to save registers; up to 4 they do not.
template <int LOADS, class Load>
__device__ unsigned read_over(int vectors, int first, int step, int passes, Load load) {
    unsigned sum = 0;
    for (int p = 0; p < passes; ++p) {
#pragma unroll 1  // or the loads of the next turn would be issued in this one
        for (int i = first; i < vectors; i += LOADS * step) {
            uint4 v[LOADS];
#pragma unroll
            for (int k = 0; k < LOADS; ++k) v[k] = load(i + k * step);
#pragma unroll
            for (int k = 0; k < LOADS; ++k) sum += sum_of(v[k]);
            wait_for(sum);
        }
    }
    return sum;
}

// The grid reads x together, past the L1 cache.
template <int LOADS>
__device__ void read_past_l1(const uint4* x, int vectors, int passes, unsigned* result) {
    result[thread_of_grid()] = read_over<LOADS>(vectors, thread_of_grid(), threads_of_grid(), passes,
                                                [=](int i) { return __ldcg(x + i); });
}

extern "C" __global__ void read_1(const uint4* x, int vectors, int passes, unsigned* result) {
    read_past_l1<1>(x, vectors, passes, result);
}

extern "C" __global__ void read_2(const uint4* x, int vectors, int passes, unsigned* result) {
    read_past_l1<2>(x, vectors, passes, result);
}

extern "C" __global__ void read_4(const uint4* x, int vectors, int passes, unsigned* result) {
    read_past_l1<4>(x, vectors, passes, result);
}

// Each block reads `vectors` vectors of its own; after the first pass they are in the L1 cache.
extern "C" __global__ void read_l1(const uint4* x, int vectors, int passes, unsigned* result) {
    const uint4* own = x + blockIdx.x * vectors;
    result[thread_of_grid()] = read_over<2>(vectors, threadIdx.x, blockDim.x, passes, [=](int i) { return __ldca(own + i); });
}

// Each block reads the first 2048 vectors of x, which it has copied into shared memory.
extern "C" __global__ void read_shared(const uint4* x, int passes, unsigned* result) {
    __shared__ uint4 own[2048];
    for (int i = threadIdx.x; i < 2048; i += blockDim.x) own[i] = x[i];
    __syncthreads();
    result[thread_of_grid()] = read_over<2>(2048, threadIdx.x, blockDim.x, passes, [=](int i) { return own[i]; });
}

// Each step is eight independent multiply-adds, which name three registers each. ones: 1024 times 1, from memory, so that
// the compiler cannot know them, nor that all threads have the same.
extern "C" __global__ void read_registers(const int* ones, int passes, unsigned* result) {
    const float factor = ones[threadIdx.x], term = ones[1023 - threadIdx.x];
    float sum[8] = {};
#pragma unroll 16
    for (int p = 0; p < passes; ++p) {
#pragma unroll
        for (float& s : sum) s = __fmaf_rn(s, factor, term);
    }
    float all = 0;
    for (float s : sum) all += s;
    result[thread_of_grid()] = static_cast<unsigned>(all);
}
