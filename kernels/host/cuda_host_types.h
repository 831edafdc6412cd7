// dim3 and the vector types, with CUDA's sizes and alignments. Part of cuda_host.h.
#pragma once

// In a trace, a vector is stored as a whole, as on a GPU: g++ makes four stores of `y[i] = {a, b, c, d}`.
#ifdef CUDA_HOST_TRACE
#define CUDA_HOST_WHOLE(name)                                                                            \
    name& operator=(const name& from) {                                                                  \
        typedef unsigned char Bytes __attribute__((vector_size(sizeof(name) > 16 ? 16 : sizeof(name)), may_alias)); \
        for (unsigned i = 0; i < sizeof(name) / sizeof(Bytes); ++i)                                      \
            reinterpret_cast<Bytes*>(this)[i] = reinterpret_cast<const Bytes*>(&from)[i];                \
        return *this;                                                                                    \
    }
#else
#define CUDA_HOST_WHOLE(name)
#endif

#define CUDA_HOST_VECTORS(name, T, align2, align4)                                         \
    struct name##1 { T x; };                                                               \
    struct __attribute__((aligned(align2))) name##2 { T x, y; CUDA_HOST_WHOLE(name##2) };  \
    struct name##3 { T x, y, z; };                                                         \
    struct __attribute__((aligned(align4))) name##4 { T x, y, z, w; CUDA_HOST_WHOLE(name##4) }; \
    constexpr name##1 make_##name##1(T x) { return {x}; }                                  \
    constexpr name##2 make_##name##2(T x, T y) { return {x, y}; }                          \
    constexpr name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                  \
    constexpr name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

CUDA_HOST_VECTORS(char, signed char, 2, 4)
CUDA_HOST_VECTORS(uchar, unsigned char, 2, 4)
CUDA_HOST_VECTORS(short, short, 4, 8)
CUDA_HOST_VECTORS(ushort, unsigned short, 4, 8)
CUDA_HOST_VECTORS(int, int, 8, 16)
CUDA_HOST_VECTORS(uint, unsigned int, 8, 16)
CUDA_HOST_VECTORS(longlong, long long, 16, 16)
CUDA_HOST_VECTORS(ulonglong, unsigned long long, 16, 16)
CUDA_HOST_VECTORS(float, float, 8, 16)
CUDA_HOST_VECTORS(double, double, 16, 16)
#undef CUDA_HOST_VECTORS
#undef CUDA_HOST_WHOLE

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};
