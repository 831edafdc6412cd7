// A row of a matrix and the threads that share it: sums over them, and the row in their registers.
#pragma once

#include "launch.cuh"
#include "vec.cuh"

constexpr int LANES = 32;
constexpr int THREADS = 256;  // of a FixedBlock

// A sum over all threads that share a row; each of them gets it, with the same bits. PART: a kernel calls it once for a
// number, which has shared memory of its own, so that no barrier is needed between two calls.

struct Warp {
    static constexpr int MOST_THREADS = 128;  // of a block, whose warps have a row each
    static __device__ int threads() { return LANES; }
    template <int PART, class F> static __device__ F sum(F value) {
        for (int s = LANES / 2; s > 0; s /= 2) value += __shfl_xor_sync(0xffffffff, value, s);
        return value;
    }
};

struct Block {
    static constexpr int MOST_THREADS = 512;
    static __device__ int threads() { return blockDim.x; }
    template <int PART, class F> static __device__ F sum(F value) {
        __shared__ F part[LANES];
        const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
        value = Warp::sum<PART>(value);
        if (lane == 0) part[warp] = value;
        __syncthreads();
        return Warp::sum<PART>(lane * LANES < blockDim.x ? part[lane] : F(0));
    }
};

struct FixedBlock : Block {
    static __device__ int threads() { return THREADS; }  // known to the compiler
};

// ---------------------------------------------------------------------------------------------------
// A thread keeps N elements of its row in registers.

// Where the k-th element of a thread stands in its row: WIDTH neighbours, and then the next ones a group's width away.
template <class Group, int WIDTH> __device__ int column(int k) {
    return k / WIDTH * WIDTH * Group::threads() + threadIdx.x * WIDTH + k % WIDTH;
}

template <int WIDTH, class T> __device__ void load_piece(const T* from, T* to) {
    if constexpr (WIDTH == 1) {
        *to = *from;
    } else {
        const Vec<T> piece = load_vec(from);
        for (int e = 0; e < WIDTH; ++e) to[e] = piece.at[e];
    }
}

template <int WIDTH, class T> __device__ void store_piece(T* to, const T* from) {
    if constexpr (WIDTH == 1) {
        *to = *from;
    } else {
        Vec<T> piece;
        for (int e = 0; e < WIDTH; ++e) piece.at[e] = from[e];
        store_vec(to, piece);
    }
}

// Elements beyond the end of the row are 0.
template <class Group, int WIDTH, class T, int N>
__device__ void load_row(const T* row, int cols, T (&v)[N]) {
#pragma unroll
    for (int k = 0; k < N; k += WIDTH) {
        const int c = column<Group, WIDTH>(k);
        for (int e = 0; e < WIDTH; ++e) v[k + e] = to_element<T>(0);
        if (c < cols) load_piece<WIDTH>(row + c, v + k);
    }
}

template <class Group, int WIDTH, class T, int N>
__device__ void store_row(T* row, int cols, const T (&v)[N]) {
#pragma unroll
    for (int k = 0; k < N; k += WIDTH) {
        const int c = column<Group, WIDTH>(k);
        if (c < cols) store_piece<WIDTH>(row + c, v + k);
    }
}

// A vector that lies in two rows, or that begins anywhere, is no vector: then elements move one by one.
template <class T, class... P>
bool in_vectors(int64_t cols, const P*... arrays) {
    return cols % Vec<T>::SIZE == 0 && (is_vec_aligned(arrays) && ...);
}
