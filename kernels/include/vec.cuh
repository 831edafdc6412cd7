// 16-byte vectors: the widest load and store that every GPU since sm_50 has.
#pragma once

#include <cassert>
#include <cstdint>
#include <cstring>

constexpr int VEC_BYTES = 16;

// VEC_BYTES of elements in registers.
template <class T> struct Vec {
    static constexpr int SIZE = VEC_BYTES / sizeof(T);
    T at[SIZE];
};

inline bool is_vec_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % VEC_BYTES == 0; }

// A GPU faults by itself at an address that is no multiple of 16; most CPUs do not.
#ifdef CUDA_HOST_BACKEND
#define ASSERT_VEC_ALIGNED(p) assert(is_vec_aligned(p))
#else
#define ASSERT_VEC_ALIGNED(p)
#endif

// `p` must be a multiple of 16 bytes. The load goes through uint4, because the compiler may split the
// copy of an array of 16-bit elements into 16-bit loads; memcpy between registers costs nothing.
template <class T> __device__ inline Vec<T> load_vec(const T* p) {
    ASSERT_VEC_ALIGNED(p);
    const uint4 raw = *reinterpret_cast<const uint4*>(p);
    Vec<T> v;
    memcpy(&v, &raw, VEC_BYTES);
    return v;
}

template <class T> __device__ inline void store_vec(T* p, const Vec<T>& v) {
    ASSERT_VEC_ALIGNED(p);
    uint4 raw;
    memcpy(&raw, &v, VEC_BYTES);
    *reinterpret_cast<uint4*>(p) = raw;
}

// A vector from one place to another as it is. (nvcc splits the store of store_vec(to, load_vec(from)) into four where
// `from` is shared memory.)
template <class T> __device__ inline void copy_vec(T* to, const T* from) {
    ASSERT_VEC_ALIGNED(to);
    ASSERT_VEC_ALIGNED(from);
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
}
