// Patterns of shared-memory accesses, each a launch of one warp: what a GPU counts for them is what the trace has to
// count. With nvcc it is a program that launches all of them.
#include <cstdint>
#include <cstdio>
#include <cuda_runtime.h>

constexpr int PATTERNS = 26, MASKS = 3, TYPES = 4;
constexpr int LAUNCHES = PATTERNS * MASKS * TYPES * 2;

// Which item of the array lane l accesses in pattern p.
__device__ unsigned item(int p, unsigned l) {
    if (p < 8) {
        const unsigned strides[8] = {1, 2, 3, 4, 8, 16, 32, 33};
        return l * strides[p] % 1056;
    }
    if (p == 8) return 0;            // all the same
    if (p == 9) return l / 2;        // neighbours alike
    if (p == 10) return l % 2 * 32;  // every second one alike
    if (p == 11) return l % 16;      // both halves alike
    if (p == 12) return l ^ 5;       // within one row, mixed
    unsigned h = (l + 1) * 2654435761u ^ (p * 40503u * 77777u);
    h ^= h >> 13;
    h *= 2246822519u;
    h ^= h >> 16;
    return h % (p < 20 ? 64 : 1056);  // by chance, in a small array and in a large one
}

template <class T> __global__ void loads(T* y, int p, unsigned active) {
    __shared__ __align__(16) T tile[1056];
    for (unsigned i = threadIdx.x; i < 1056; i += 32) tile[i] = T{};
    __syncwarp();
    if (active >> threadIdx.x & 1) y[threadIdx.x] = tile[item(p, threadIdx.x)];  // @loads
}

template <class T> __global__ void stores(T* y, int p, unsigned active) {
    __shared__ __align__(16) T tile[1056];
    const T v = y[threadIdx.x];
    if (active >> threadIdx.x & 1) tile[item(p, threadIdx.x)] = v;  // @stores
    __syncwarp();
    y[threadIdx.x] = tile[threadIdx.x];
}

template <class T> void launch_as(void* y, int k) {
    const unsigned masks[MASKS] = {0xffffffffu, 0x0f0ff00fu, 0x00010203u};
    const int p = k / 2 % PATTERNS;
    const unsigned active = masks[k / 2 / PATTERNS];
    if (k % 2)
        stores<T><<<1, 32>>>(static_cast<T*>(y), p, active);
    else
        loads<T><<<1, 32>>>(static_cast<T*>(y), p, active);
}

// Launch k of LAUNCHES: loads and stores in turn, then patterns, then masks, of each type.
extern "C" __attribute__((visibility("default"))) int run(void* y, int k) {
    switch (k % TYPES) {
        case 0: launch_as<unsigned short>(y, k / TYPES); break;
        case 1: launch_as<float>(y, k / TYPES); break;
        case 2: launch_as<double>(y, k / TYPES); break;
        default: launch_as<uint4>(y, k / TYPES);
    }
    return cudaGetLastError();
}

#ifdef __CUDACC__
int main() {
    void* y;
    cudaMalloc(&y, 1056 * 16);
    cudaMemset(y, 0, 1056 * 16);
    for (int k = 0; k < LAUNCHES; ++k)
        if (run(y, k)) return 1;
    return cudaDeviceSynchronize();
}
#endif
