// Floating-point types of 16 bits in software: exact on every CPU. Used by cuda_fp16.h and cuda_bf16.h.
//
// Rounding is to nearest, ties to even; denormals, infinities and NaN (0x7fff, as a GPU makes it) are right.
// Arithmetic rounds the exact result once: for + - * / the detour over float gives just that, since a float
// has more than twice the digits; for fma see fused() below.
#pragma once

#include "cuda_host.h"

namespace cuda_host {

// Rounds a double to 1 sign, E exponent and M mantissa bits; `toward_zero` cuts off instead.
template <int E, int M>
__attribute__((noinline)) constexpr unsigned short narrow(double x, bool toward_zero = false) {
    constexpr int bias = (1 << (E - 1)) - 1;
    constexpr unsigned infinity = ((1u << E) - 1) << M;
    const unsigned long long bits = __builtin_bit_cast(unsigned long long, x);
    const unsigned long long fraction = bits & ((1ull << 52) - 1);
    const unsigned sign = static_cast<unsigned>(bits >> 63) << 15;
    const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
    if (exponent == 0x7ff) return static_cast<unsigned short>(fraction ? 0x7fff : sign | infinity);
    const int target = exponent - 1023 + bias;  // below 1: denormal, the more digits go the smaller it is
    const int shift = 52 - M + (target < 1 ? 1 - target : 0);
    if (shift > 54) return static_cast<unsigned short>(sign);
    const unsigned long long digits = fraction | 1ull << 52;
    unsigned long long kept = digits >> shift;
    const unsigned long long rest = digits & ((1ull << shift) - 1), tie = 1ull << (shift - 1);
    if (!toward_zero && (rest > tie || (rest == tie && kept & 1))) ++kept;
    // A normal number's leading 1 carries into the exponent, and so does a mantissa that was rounded up.
    unsigned long long result = kept + (target < 1 ? 0 : static_cast<unsigned long long>(target - 1) << M);
    if (result >= infinity) result = toward_zero ? infinity - 1 : infinity;
    return static_cast<unsigned short>(sign | result);
}

template <int E, int M>
__attribute__((noinline)) constexpr float widen(unsigned short bits) {
    if constexpr (E == 8) {  // a float that lost its lower half
        return __builtin_bit_cast(float, static_cast<unsigned>(bits) << 16);
    } else {
        constexpr int bias = (1 << (E - 1)) - 1;
        const unsigned sign = static_cast<unsigned>(bits >> 15) << 31, exponent = bits >> M & ((1u << E) - 1);
        const unsigned fraction = bits & ((1u << M) - 1);
        if (exponent == (1u << E) - 1)
            return __builtin_bit_cast(float, fraction ? 0x7fffffffu : sign | 0x7f800000u);
        if (exponent)
            return __builtin_bit_cast(float, sign | (exponent + 127 - bias) << 23 | fraction << (23 - M));
        const float value = static_cast<float>(fraction) / static_cast<float>(1ull << (bias + M - 1));
        return sign ? -value : value;
    }
}

// a * b + c with the last digit odd when digits were lost, so that rounding it to fewer digits rounds only
// once. The product of two 16-bit numbers is exact in a double.
inline double fused(double a, double b, double c) {
    const double product = a * b, sum = product + c;
    const double back = sum - product, lost = (product - (sum - back)) + (c - back);
    unsigned long long bits = __builtin_bit_cast(unsigned long long, sum);
    if (lost == 0 || lost != lost || bits & 1) return sum;
    return __builtin_bit_cast(double, (lost > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

// A 64-bit integer as a double, with the last digit odd when digits were lost.
constexpr double to_double(unsigned long long x) {
    return static_cast<double>(x >> 53 ? (x >> 11 | ((x & 0x7ff) != 0)) << 11 : x);
}

template <int E, int M>
struct Small {
    unsigned short bits;

    Small() = default;
    constexpr Small(float x) : bits(narrow<E, M>(x)) {}
    constexpr Small(double x) : bits(narrow<E, M>(x)) {}
    constexpr Small(short x) : Small(static_cast<double>(x)) {}
    constexpr Small(unsigned short x) : Small(static_cast<double>(x)) {}
    constexpr Small(int x) : Small(static_cast<double>(x)) {}
    constexpr Small(unsigned x) : Small(static_cast<double>(x)) {}
    constexpr Small(unsigned long long x) : Small(to_double(x)) {}
    constexpr Small(long long x)
        : Small(x < 0 ? -to_double(0 - static_cast<unsigned long long>(x))
                      : to_double(static_cast<unsigned long long>(x))) {}
    constexpr Small(unsigned long x) : Small(static_cast<unsigned long long>(x)) {}
    constexpr Small(long x) : Small(static_cast<long long>(x)) {}
    constexpr operator float() const { return widen<E, M>(bits); }

    static constexpr Small from_bits(unsigned bits) {
        Small s{};
        s.bits = static_cast<unsigned short>(bits);
        return s;
    }
    constexpr float f() const { return widen<E, M>(bits); }

    friend constexpr Small operator+(Small a, Small b) { return a.f() + b.f(); }
    friend constexpr Small operator-(Small a, Small b) { return a.f() - b.f(); }
    friend constexpr Small operator*(Small a, Small b) { return a.f() * b.f(); }
    friend constexpr Small operator/(Small a, Small b) { return a.f() / b.f(); }
    friend constexpr Small operator-(Small a) { return from_bits(a.bits ^ 0x8000u); }
    friend constexpr Small operator+(Small a) { return a; }
    constexpr Small& operator+=(Small b) { return *this = *this + b; }
    constexpr Small& operator-=(Small b) { return *this = *this - b; }
    constexpr Small& operator*=(Small b) { return *this = *this * b; }
    constexpr Small& operator/=(Small b) { return *this = *this / b; }
    friend constexpr bool operator==(Small a, Small b) { return a.f() == b.f(); }
    friend constexpr bool operator!=(Small a, Small b) { return a.f() != b.f(); }
    friend constexpr bool operator<(Small a, Small b) { return a.f() < b.f(); }
    friend constexpr bool operator<=(Small a, Small b) { return a.f() <= b.f(); }
    friend constexpr bool operator>(Small a, Small b) { return a.f() > b.f(); }
    friend constexpr bool operator>=(Small a, Small b) { return a.f() >= b.f(); }

    friend constexpr Small __hadd(Small a, Small b) { return a + b; }
    friend constexpr Small __hadd_rn(Small a, Small b) { return a + b; }
    friend constexpr Small __hsub(Small a, Small b) { return a - b; }
    friend constexpr Small __hsub_rn(Small a, Small b) { return a - b; }
    friend constexpr Small __hmul(Small a, Small b) { return a * b; }
    friend constexpr Small __hmul_rn(Small a, Small b) { return a * b; }
    friend constexpr Small __hdiv(Small a, Small b) { return a / b; }
    friend constexpr Small __hneg(Small a) { return -a; }
    friend constexpr Small __habs(Small a) { return from_bits(a.bits & 0x7fffu); }
    friend Small __hfma(Small a, Small b, Small c) { return fused(a.f(), b.f(), c.f()); }
    friend Small __hfma_relu(Small a, Small b, Small c) { return __hmax(__hfma(a, b, c), Small(0.0f)); }
    friend constexpr bool __hisnan(Small a) { return a.f() != a.f(); }
    friend constexpr int __hisinf(Small a) {
        return (a.bits & 0x7fffu) == ((1u << E) - 1) << M ? (a.bits & 0x8000u ? -1 : 1) : 0;
    }
    friend constexpr bool __heq(Small a, Small b) { return a == b; }
    friend constexpr bool __hne(Small a, Small b) { return !__hisnan(a) && !__hisnan(b) && a != b; }
    friend constexpr bool __hlt(Small a, Small b) { return a < b; }
    friend constexpr bool __hle(Small a, Small b) { return a <= b; }
    friend constexpr bool __hgt(Small a, Small b) { return a > b; }
    friend constexpr bool __hge(Small a, Small b) { return a >= b; }
    // The larger or smaller number; NaN only if both are. +0 is larger than -0.
    friend constexpr Small __hmax(Small a, Small b) {
        if (__hisnan(a)) return __hisnan(b) ? from_bits(0x7fff) : b;
        return __hisnan(b) || a > b || (a == b && !(a.bits & 0x8000u)) ? a : b;
    }
    friend constexpr Small __hmin(Small a, Small b) {
        if (__hisnan(a)) return __hisnan(b) ? from_bits(0x7fff) : b;
        return __hisnan(b) || a < b || (a == b && a.bits & 0x8000u) ? a : b;
    }
    friend constexpr Small __hmax_nan(Small a, Small b) {
        return __hisnan(a) || __hisnan(b) ? from_bits(0x7fff) : __hmax(a, b);
    }
    friend constexpr Small __hmin_nan(Small a, Small b) {
        return __hisnan(a) || __hisnan(b) ? from_bits(0x7fff) : __hmin(a, b);
    }
    friend Small hexp(Small a) { return exp(static_cast<double>(a.f())); }
    friend Small hexp2(Small a) { return exp2(static_cast<double>(a.f())); }
    friend Small hlog(Small a) { return log(static_cast<double>(a.f())); }
    friend Small hlog2(Small a) { return log2(static_cast<double>(a.f())); }
    friend Small hsqrt(Small a) { return sqrt(static_cast<double>(a.f())); }
    friend Small hrsqrt(Small a) { return rsqrt(static_cast<double>(a.f())); }
    friend Small hrcp(Small a) { return 1.0 / a.f(); }
    friend Small hsin(Small a) { return sin(static_cast<double>(a.f())); }
    friend Small hcos(Small a) { return cos(static_cast<double>(a.f())); }
    friend Small htanh(Small a) { return tanh(static_cast<double>(a.f())); }
};

template <int E, int M>
struct alignas(4) Small2 {
    using S = Small<E, M>;
    S x, y;

    Small2() = default;
    constexpr Small2(S x, S y) : x(x), y(y) {}

    friend constexpr Small2 operator+(Small2 a, Small2 b) { return {a.x + b.x, a.y + b.y}; }
    friend constexpr Small2 operator-(Small2 a, Small2 b) { return {a.x - b.x, a.y - b.y}; }
    friend constexpr Small2 operator*(Small2 a, Small2 b) { return {a.x * b.x, a.y * b.y}; }
    friend constexpr Small2 operator/(Small2 a, Small2 b) { return {a.x / b.x, a.y / b.y}; }
    friend constexpr Small2 operator-(Small2 a) { return {-a.x, -a.y}; }
    constexpr Small2& operator+=(Small2 b) { return *this = *this + b; }
    constexpr Small2& operator-=(Small2 b) { return *this = *this - b; }
    constexpr Small2& operator*=(Small2 b) { return *this = *this * b; }
    constexpr Small2& operator/=(Small2 b) { return *this = *this / b; }

    friend constexpr Small2 __hadd2(Small2 a, Small2 b) { return a + b; }
    friend constexpr Small2 __hsub2(Small2 a, Small2 b) { return a - b; }
    friend constexpr Small2 __hmul2(Small2 a, Small2 b) { return a * b; }
    friend constexpr Small2 __h2div(Small2 a, Small2 b) { return a / b; }
    friend constexpr Small2 __hneg2(Small2 a) { return -a; }
    friend constexpr Small2 __habs2(Small2 a) { return {__habs(a.x), __habs(a.y)}; }
    friend constexpr Small2 __hmax2(Small2 a, Small2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
    friend constexpr Small2 __hmin2(Small2 a, Small2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }
    friend Small2 __hfma2(Small2 a, Small2 b, Small2 c) {
        return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
    }
    friend Small2 h2exp(Small2 a) { return {hexp(a.x), hexp(a.y)}; }
    friend Small2 h2exp2(Small2 a) { return {hexp2(a.x), hexp2(a.y)}; }
    friend Small2 h2log(Small2 a) { return {hlog(a.x), hlog(a.y)}; }
    friend Small2 h2sqrt(Small2 a) { return {hsqrt(a.x), hsqrt(a.y)}; }
    friend Small2 h2rsqrt(Small2 a) { return {hrsqrt(a.x), hrsqrt(a.y)}; }
    friend Small2 h2rcp(Small2 a) { return {hrcp(a.x), hrcp(a.y)}; }
    friend Small2 h2tanh(Small2 a) { return {htanh(a.x), htanh(a.y)}; }
};

}  // namespace cuda_host

// What both types have under names of their own. S: the type; name, name2: how CUDA spells it inside function
// names.
#define CUDA_HOST_SMALL_FLOAT(S, S2, name, name2)                                                   \
    constexpr S __float2##name(float x) { return x; }                                               \
    constexpr S __float2##name##_rn(float x) { return x; }                                          \
    constexpr S __double2##name(double x) { return x; }                                             \
    constexpr S __int2##name##_rn(int x) { return x; }                                              \
    constexpr S __uint2##name##_rn(unsigned x) { return x; }                                        \
    constexpr S __short2##name##_rn(short x) { return x; }                                          \
    constexpr S __ushort2##name##_rn(unsigned short x) { return x; }                                \
    constexpr S __ll2##name##_rn(long long x) { return x; }                                         \
    constexpr S __ull2##name##_rn(unsigned long long x) { return x; }                               \
    constexpr float __##name##2float(S x) { return x.f(); }                                         \
    inline int __##name##2int_rn(S x) { return __float2int_rn(x.f()); }                             \
    inline int __##name##2int_rz(S x) { return __float2int_rz(x.f()); }                             \
    constexpr unsigned short __##name##_as_ushort(S x) { return x.bits; }                           \
    constexpr short __##name##_as_short(S x) { return static_cast<short>(x.bits); }                 \
    constexpr S __ushort_as_##name(unsigned short x) { return S::from_bits(x); }                    \
    constexpr S __short_as_##name(short x) { return S::from_bits(static_cast<unsigned short>(x)); } \
    constexpr S2 __float2##name2##_rn(float x) { return {x, x}; }                                   \
    constexpr S2 __floats2##name2##_rn(float x, float y) { return {x, y}; }                         \
    constexpr S2 __float22##name2##_rn(float2 x) { return {x.x, x.y}; }                             \
    constexpr float2 __##name2##2float2(S2 x) { return {x.x.f(), x.y.f()}; }                        \
    constexpr S2 __halves2##name2(S x, S y) { return {x, y}; }                                      \
    constexpr S2 __##name##2##name2(S x) { return {x, x}; }                                         \
    constexpr S2 make_##name2(S x, S y) { return {x, y}; }                                          \
    constexpr S __low2##name(S2 x) { return x.x; }                                                  \
    constexpr S __high2##name(S2 x) { return x.y; }                                                 \
    constexpr float __low2float(S2 x) { return x.x.f(); }                                           \
    constexpr float __high2float(S2 x) { return x.y.f(); }                                          \
    constexpr S2 __low2##name2(S2 x) { return {x.x, x.x}; }                                         \
    constexpr S2 __high2##name2(S2 x) { return {x.y, x.y}; }                                        \
    constexpr S2 __lows2##name2(S2 a, S2 b) { return {a.x, b.x}; }                                  \
    constexpr S2 __highs2##name2(S2 a, S2 b) { return {a.y, b.y}; }                                 \
    CUDA_HOST_SHUFFLES(S)                                                                           \
    CUDA_HOST_SHUFFLES(S2)                                                                          \
    CUDA_HOST_ATOMIC_BY_CAS(atomicAdd, S, unsigned short, old + value)                              \
    CUDA_HOST_ATOMIC_BY_CAS(atomicAdd, S2, unsigned, old + value)
