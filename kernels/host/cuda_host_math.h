// Math functions and arithmetic intrinsics. Part of cuda_host.h.
//
// expf, tanhf, erff, fmaf, ... are the C library's own, in the global namespace as in CUDA; here is the rest.
#pragma once

#include <math.h>

// ---- functions ----
inline float rsqrtf(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float exp10f(float x) { return static_cast<float>(pow(10.0, static_cast<double>(x))); }
inline float normcdff(float x) { return static_cast<float>(0.5 * erfc(-0.70710678118654752440 * x)); }
inline double normcdf(double x) { return 0.5 * erfc(-0.70710678118654752440 * x); }
inline float fdividef(float x, float y) { return x / y; }
// NaN gives 0, as on a GPU.
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

#define CUDA_HOST_MIN_MAX(A, B, T)                                                            \
    constexpr T min(A a, B b) {                                                               \
        return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b); \
    }                                                                                         \
    constexpr T max(A a, B b) {                                                               \
        return static_cast<T>(a) > static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b); \
    }
CUDA_HOST_MIN_MAX(int, int, int)
CUDA_HOST_MIN_MAX(unsigned, unsigned, unsigned)
CUDA_HOST_MIN_MAX(int, unsigned, unsigned)
CUDA_HOST_MIN_MAX(unsigned, int, unsigned)
CUDA_HOST_MIN_MAX(long, long, long)
CUDA_HOST_MIN_MAX(unsigned long, unsigned long, unsigned long)
CUDA_HOST_MIN_MAX(long, unsigned long, unsigned long)
CUDA_HOST_MIN_MAX(unsigned long, long, unsigned long)
CUDA_HOST_MIN_MAX(long long, long long, long long)
CUDA_HOST_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
CUDA_HOST_MIN_MAX(long long, unsigned long long, unsigned long long)
CUDA_HOST_MIN_MAX(unsigned long long, long long, unsigned long long)
#undef CUDA_HOST_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }

// ---- single-precision intrinsics: the approximate ones are accurate here ----
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __tanhf(float x) { return tanhf(x); }
inline void __sincosf(float x, float* s, float* c) {
    *s = sinf(x);
    *c = cosf(x);
}
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }

// Rounded to nearest even, which is how the host rounds. Directed rounding (_rz, _ru, _rd) is refused.
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __drcp_rn(double x) { return 1.0 / x; }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

// ---- conversions ----
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
inline double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }

namespace cuda_host {

// A float as an integer, as a GPU converts it: out of range saturates, NaN gives `nan`.
template <class T>
inline T to_integer(double rounded, T nan) {
    constexpr bool is_signed = static_cast<T>(-1) < static_cast<T>(0);
    constexpr T high = is_signed ? static_cast<T>((1ull << (sizeof(T) * 8 - 1)) - 1) : static_cast<T>(-1);
    constexpr T low = is_signed ? static_cast<T>(-high - 1) : static_cast<T>(0);
    if (rounded != rounded) return nan;
    if (rounded >= static_cast<double>(high)) return high;
    return rounded <= static_cast<double>(low) ? low : static_cast<T>(rounded);
}

}  // namespace cuda_host

#define CUDA_HOST_TO_INTEGER(From, from, T, to, nan)                               \
    inline T __##from##2##to##_rn(From x) {                                        \
        return ::cuda_host::to_integer<T>(nearbyint(static_cast<double>(x)), nan); \
    }                                                                              \
    inline T __##from##2##to##_rz(From x) {                                        \
        return ::cuda_host::to_integer<T>(trunc(static_cast<double>(x)), nan);     \
    }                                                                              \
    inline T __##from##2##to##_ru(From x) {                                        \
        return ::cuda_host::to_integer<T>(ceil(static_cast<double>(x)), nan);      \
    }                                                                              \
    inline T __##from##2##to##_rd(From x) {                                        \
        return ::cuda_host::to_integer<T>(floor(static_cast<double>(x)), nan);     \
    }
CUDA_HOST_TO_INTEGER(float, float, int, int, 0)
CUDA_HOST_TO_INTEGER(float, float, unsigned, uint, 0u)
CUDA_HOST_TO_INTEGER(float, float, long long, ll, static_cast<long long>(1ull << 63))
CUDA_HOST_TO_INTEGER(float, float, unsigned long long, ull, 1ull << 63)
CUDA_HOST_TO_INTEGER(double, double, int, int, static_cast<int>(1u << 31))
CUDA_HOST_TO_INTEGER(double, double, unsigned, uint, 1u << 31)
CUDA_HOST_TO_INTEGER(double, double, long long, ll, static_cast<long long>(1ull << 63))
CUDA_HOST_TO_INTEGER(double, double, unsigned long long, ull, 1ull << 63)
#undef CUDA_HOST_TO_INTEGER
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline float __double2float_rn(double x) { return static_cast<float>(x); }

// ---- integer intrinsics ----
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; ++i) r |= (x >> i & 1u) << (31 - i);
    return r;
}
inline unsigned long long __brevll(unsigned long long x) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
           __brev(static_cast<unsigned>(x >> 32));
}
inline int __mulhi(int x, int y) { return static_cast<int>((static_cast<long long>(x) * y) >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) { return static_cast<unsigned>((1ull * x * y) >> 32); }
inline int __mul24(int x, int y) {
    return static_cast<int>(static_cast<unsigned>((x << 8) >> 8) * static_cast<unsigned>((y << 8) >> 8));
}
inline unsigned __umul24(unsigned x, unsigned y) { return (x & 0xffffffu) * (y & 0xffffffu); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>(((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31));
}
