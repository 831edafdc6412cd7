// GeLU (tanh form), forward and gradient, one idea a version. Versions 2 to 4 change version 1, the others version 4.
//
//   v1  one element a thread
//   v2  a grid-stride loop: a grid of fixed size walks over the array
//   v3  the article's geometry: 32 threads a block, 4 consecutive elements a thread
//   v4  16-byte vectors: one load brings 8 elements of 16 bits
//   v5  two vectors a thread: both loads are issued before either is used
//   v6  the hardware's tanh: one instruction, and inexact
//   v7  x * sigmoid(2z): hardware exp2 and reciprocal, no cancellation in the tails
//
// n: elements. Every version has four modes (forward, forward + derivative, backward from x, backward
// from the saved derivative) and four element types; the mode and the type are template parameters, so
// that a version shows nothing but how it moves data.
#include <math.h>

#include "approx.cuh"
#include "gelu.h"
#include "launch.cuh"
#include "vec.cuh"

// ---------------------------------------------------------------------------------------------------
// The function of one element:  z = A (x + B x^3),  gelu(x) = x/2 (1 + tanh z)

constexpr double A = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double B = 0.044715;

// The textbook form. 1 + tanh(z) cancels where tanh(z) is near -1: for x < -5 no correct digit is left.
struct ExactTanh {
    static __device__ float tanh_of(float z) { return tanhf(z); }
    static __device__ double tanh_of(double z) { return tanh(z); }
};

template <class Tanh> struct ByTanh {
    // y = gelu(x), d = gelu'(x). Where a caller drops one of them, the compiler drops its arithmetic.
    template <class T, class F = compute_t<T>> static __device__ void eval(F x, F& y, F& d) {
        const F u = x * x;
        const F t = Tanh::tanh_of(F(A) * x * (1 + F(B) * u));
        y = F(0.5) * x * (1 + t);
        d = F(0.5) * (1 + t) + F(0.5) * x * (1 - t * t) * F(A) * (1 + F(3 * B) * u);
    }
};

// ---------------------------------------------------------------------------------------------------
// The four modes: which arrays are read and written, and what happens to one element.

template <class Math> struct Forward {  // x -> y
    static constexpr int IN = 1, OUT = 1;
    template <class T, class F> static __device__ void apply(const F (&in)[1], F (&out)[1]) {
        F derivative;
        Math::template eval<T>(in[0], out[0], derivative);
    }
};

template <class Math> struct ForwardDerivative {  // x -> y, derivative
    static constexpr int IN = 1, OUT = 2;
    template <class T, class F> static __device__ void apply(const F (&in)[1], F (&out)[2]) {
        Math::template eval<T>(in[0], out[0], out[1]);
    }
};

template <class Math> struct Backward {  // grad, x -> grad_x
    static constexpr int IN = 2, OUT = 1;
    template <class T, class F> static __device__ void apply(const F (&in)[2], F (&out)[1]) {
        F y, derivative;
        Math::template eval<T>(in[1], y, derivative);
        out[0] = in[0] * derivative;
    }
};

template <class> struct BackwardSaved {  // grad, derivative -> grad_x
    static constexpr int IN = 2, OUT = 1;
    template <class T, class F> static __device__ void apply(const F (&in)[2], F (&out)[1]) {
        out[0] = in[0] * in[1];
    }
};

template <int IN, int OUT, class T> struct Arrays {
    const T* in[IN];
    T* out[OUT];
};
template <class Mode, class T> using ArraysOf = Arrays<Mode::IN, Mode::OUT, T>;

template <class Mode, class T>
__device__ void one_element(const ArraysOf<Mode, T>& a, int64_t i) {
    compute_t<T> in[Mode::IN], out[Mode::OUT];
    for (int k = 0; k < Mode::IN; ++k) in[k] = to_compute(a.in[k][i]);
    Mode::template apply<T>(in, out);
    for (int k = 0; k < Mode::OUT; ++k) a.out[k][i] = to_element<T>(out[k]);
}

template <class Mode, class T>
__device__ void one_vector(const Vec<T> (&in)[Mode::IN], Vec<T> (&out)[Mode::OUT]) {
    for (int e = 0; e < Vec<T>::SIZE; ++e) {
        compute_t<T> from[Mode::IN], to[Mode::OUT];
        for (int k = 0; k < Mode::IN; ++k) from[k] = to_compute(in[k].at[e]);
        Mode::template apply<T>(from, to);
        for (int k = 0; k < Mode::OUT; ++k) out[k].at[e] = to_element<T>(to[k]);
    }
}

constexpr unsigned blocks_for(int64_t items, int64_t items_a_block) {
    return static_cast<unsigned>((items + items_a_block - 1) / items_a_block);
}

// ---------------------------------------------------------------------------------------------------
namespace v1 {
constexpr int THREADS = 256;

template <class Mode, class T>
__global__ void kernel(ArraysOf<Mode, T> a, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i < n) one_element<Mode, T>(a, i);
}

template <class Mode, class T>
void launch(ArraysOf<Mode, T> a, int64_t n, cudaStream_t stream) {
    const unsigned blocks = blocks_for(n, THREADS);
    kernel<Mode, T><<<blocks, THREADS, 0, stream>>>(a, n);
}
}  // namespace v1

// ---------------------------------------------------------------------------------------------------
namespace v2 {
constexpr int THREADS = 256;

template <class Mode, class T>
__global__ void kernel(ArraysOf<Mode, T> a, int64_t n) {
    const int64_t step = int64_t(gridDim.x) * THREADS;
    int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    for (; i < n; i += step) one_element<Mode, T>(a, i);
}

template <class Mode, class T>
void launch(ArraysOf<Mode, T> a, int64_t n, cudaStream_t stream) {
    // An SM holds 2048 threads on an A100 or H100, 1536 on an RTX 4090, 1024 on a T4.
    int device = 0, sms = 1, threads_an_sm = THREADS;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&threads_an_sm, cudaDevAttrMaxThreadsPerMultiProcessor, device);
    const unsigned most = sms * (threads_an_sm / THREADS);  // what all SMs hold at a time, at the most
    const unsigned blocks = n < int64_t(most) * THREADS ? blocks_for(n, THREADS) : most;
    kernel<Mode, T><<<blocks, THREADS, 0, stream>>>(a, n);
}
}  // namespace v2

// ---------------------------------------------------------------------------------------------------
namespace v3 {
constexpr int THREADS = 32;
constexpr int ELEMENTS = 4;

template <class Mode, class T>
__global__ void kernel(ArraysOf<Mode, T> a, int64_t n) {
    const int64_t first = (int64_t(blockIdx.x) * THREADS + threadIdx.x) * ELEMENTS;
    // One by one: an output may be an input, so no load passes a store.
    for (int k = 0; k < ELEMENTS; ++k) {
        if (first + k < n) one_element<Mode, T>(a, first + k);
    }
}

template <class Mode, class T>
void launch(ArraysOf<Mode, T> a, int64_t n, cudaStream_t stream) {
    const unsigned blocks = blocks_for(n, THREADS * ELEMENTS);
    kernel<Mode, T><<<blocks, THREADS, 0, stream>>>(a, n);
}
}  // namespace v3

// ---------------------------------------------------------------------------------------------------
// From here on a thread moves whole vectors. The n % SIZE elements after the last whole vector go one by
// one to the first threads of the grid. Arrays that do not start at a multiple of 16 bytes (a view such as
// x[1:]) take v2 instead, which needs no alignment.

template <int IN, int OUT, class T>
bool is_aligned(const Arrays<IN, OUT, T>& a) {
    bool aligned = true;
    for (const T* p : a.in) aligned = aligned && is_vec_aligned(p);
    for (const T* p : a.out) aligned = aligned && is_vec_aligned(p);
    return aligned;
}

template <class Mode, class T>
__device__ void rest_after_vectors(const ArraysOf<Mode, T>& a, int64_t n) {
    const int rest = n % Vec<T>::SIZE;
    if (blockIdx.x == 0 && threadIdx.x < rest) one_element<Mode, T>(a, n - rest + threadIdx.x);
}

namespace v4 {
constexpr int THREADS = 128;

template <class Mode, class T>
__global__ void kernel(ArraysOf<Mode, T> a, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    const int64_t vectors = n / Vec<T>::SIZE;
    if (i < vectors) {
        const int64_t at = i * Vec<T>::SIZE;
        Vec<T> in[Mode::IN], out[Mode::OUT];
        for (int k = 0; k < Mode::IN; ++k) in[k] = load_vec(a.in[k] + at);
        one_vector<Mode, T>(in, out);
        for (int k = 0; k < Mode::OUT; ++k) store_vec(a.out[k] + at, out[k]);
    }
    rest_after_vectors<Mode, T>(a, n);
}

template <class Mode, class T>
void launch(ArraysOf<Mode, T> a, int64_t n, cudaStream_t stream) {
    if (!is_aligned(a)) return v2::launch<Mode, T>(a, n, stream);
    const unsigned blocks = blocks_for(n, THREADS * Vec<T>::SIZE);
    kernel<Mode, T><<<blocks, THREADS, 0, stream>>>(a, n);
}
}  // namespace v4

// ---------------------------------------------------------------------------------------------------
namespace v5 {
constexpr int THREADS = 128;
constexpr int VECTORS = 2;  // of a thread

template <class Mode, class T>
__global__ void kernel(ArraysOf<Mode, T> a, int64_t n) {
    const int64_t first = int64_t(blockIdx.x) * THREADS * VECTORS + threadIdx.x;
    const int64_t vectors = n / Vec<T>::SIZE;
    Vec<T> in[VECTORS][Mode::IN], out[Mode::OUT];
#pragma unroll  // `in` stays in registers only where every index is a constant
    for (int j = 0; j < VECTORS; ++j) {
        const int64_t i = first + j * THREADS;  // neighbours in a warp stay neighbours
        if (i < vectors) {
            const int64_t at = i * Vec<T>::SIZE;
            for (int k = 0; k < Mode::IN; ++k) in[j][k] = load_vec(a.in[k] + at);
        }
    }
#pragma unroll
    for (int j = 0; j < VECTORS; ++j) {
        const int64_t i = first + j * THREADS;
        if (i < vectors) {
            const int64_t at = i * Vec<T>::SIZE;
            one_vector<Mode, T>(in[j], out);
            for (int k = 0; k < Mode::OUT; ++k) store_vec(a.out[k] + at, out[k]);
        }
    }
    rest_after_vectors<Mode, T>(a, n);
}

template <class Mode, class T>
void launch(ArraysOf<Mode, T> a, int64_t n, cudaStream_t stream) {
    if (!is_aligned(a)) return v2::launch<Mode, T>(a, n, stream);
    const unsigned blocks = blocks_for(n, THREADS * VECTORS * Vec<T>::SIZE);
    kernel<Mode, T><<<blocks, THREADS, 0, stream>>>(a, n);
}
}  // namespace v5

// ---------------------------------------------------------------------------------------------------
namespace v6 {
struct HardwareTanh {
    static __device__ float tanh_of(float z) { return approx_tanh(z); }
    // There is no such instruction for double.
    static __device__ double tanh_of(double z) { return tanh(z); }
};
using Math = ByTanh<HardwareTanh>;

using v4::launch;
}  // namespace v6

// ---------------------------------------------------------------------------------------------------
namespace v7 {
// (1 + tanh z) / 2 = sigmoid(2z) = 1 / (1 + exp(-2z)): here nothing cancels.
struct Math {
    template <class T> static __device__ void eval(float x, float& y, float& d) {
        constexpr double LOG2E = 1.44269504088896341;
        constexpr float C1 = -2 * A * LOG2E, C3 = C1 * B;  // -2z log2(e) = x (C1 + C3 x^2)
        // 16-bit results: e = exp(-2z) / 2^20. Undivided, e would overflow near x = -10,
        // where y and d are still numbers that bfloat16 can hold. In float32 the -20
        // would cost the exponent three bits of its fraction, everywhere.
        constexpr float SHIFT = sizeof(T) == 2 ? -20 : 0;
        constexpr float UNIT = sizeof(T) == 2 ? 0x1p-20f : 1;
        const float e = approx_exp2(fmaf(x, fmaf(x * x, C3, C1), SHIFT));
        const float h = approx_reciprocal(e + UNIT);
        const float s = h * UNIT;  // sigmoid(2z)
        const float rest = fminf(e, 0x1p126f) * h;  // 1 - s; inf * 0 is kept away
        // Beyond |x| = 16, s is 0 or 1 to the last bit. Clamped there, x meets no 0 as
        // an infinity, and the values at -inf and inf are the limits. NaN goes by s.
        const float t = fminf(fmaxf(x, -16.0f), 16.0f);
        y = fmaxf(x, -16.0f) * s;
        d = s * fmaf(t * fmaf(t * t, float(6 * A * B), float(2 * A)), rest, 1.0f);
    }
    template <class> static __device__ void eval(double x, double& y, double& d) {
        const double e = exp(-2 * A * x * (1 + B * x * x));
        const double s = 1 / (1 + e);
        const double rest = fmin(e, 1e300) * s;
        const double t = fmin(fmax(x, -40.0), 40.0);
        y = fmax(x, -40.0) * s;
        d = s * (1 + t * (2 * A) * (1 + 3 * B * t * t) * rest);
    }
};

using v4::launch;
}  // namespace v7

// ---------------------------------------------------------------------------------------------------
// From a version and an element type at run time to a template instance. Whoever takes the kernels alone defines
// KERNELS_ONLY, since these functions would instantiate every one of them, and NVRTC compiles no host code.
#ifndef KERNELS_ONLY

template <template <class> class Mode, class T, int IN, int OUT>
const char* launch_as(int64_t version, const void* const (&in)[IN], void* const (&out)[OUT], int64_t n,
                      cudaStream_t stream) {
    Arrays<IN, OUT, T> a;
    for (int k = 0; k < IN; ++k) a.in[k] = static_cast<const T*>(in[k]);
    for (int k = 0; k < OUT; ++k) a.out[k] = static_cast<T*>(out[k]);

#define VERSION(number, Math)                                   \
    if constexpr (builds(number)) {                             \
        if (version == number) {                                \
            if (n == 0) return nullptr; /* no grid is empty */  \
            v##number::launch<Mode<Math>, T>(a, n, stream);     \
            return launch_error();                              \
        }                                                       \
    }
    VERSION(1, ByTanh<ExactTanh>)
    VERSION(2, ByTanh<ExactTanh>)
    VERSION(3, ByTanh<ExactTanh>)
    VERSION(4, ByTanh<ExactTanh>)
    VERSION(5, ByTanh<ExactTanh>)
    VERSION(6, v6::Math)
    VERSION(7, v7::Math)
#undef VERSION
    return NO_SUCH_VERSION;
}

template <template <class> class Mode, int IN, int OUT>
const char* launch(Element element, int64_t version, const void* const (&in)[IN], void* const (&out)[OUT], int64_t n,
                   void* stream) {
    return with_type(element, [&](auto t) {
        return launch_as<Mode, typename decltype(t)::type>(version, in, out, n, static_cast<cudaStream_t>(stream));
    });
}

const char* gelu_forward(Element element, int64_t version, const void* x, void* y, int64_t n, void* stream) {
    return launch<Forward>(element, version, {x}, {y}, n, stream);
}

const char* gelu_forward_derivative(Element element, int64_t version, const void* x, void* y, void* derivative,
                                    int64_t n, void* stream) {
    return launch<ForwardDerivative>(element, version, {x}, {y, derivative}, n, stream);
}

const char* gelu_backward(Element element, int64_t version, const void* grad, const void* x, void* grad_x, int64_t n,
                          void* stream) {
    return launch<Backward>(element, version, {grad, x}, {grad_x}, n, stream);
}

const char* gelu_backward_saved(Element element, int64_t version, const void* grad, const void* derivative,
                                void* grad_x, int64_t n, void* stream) {
    return launch<BackwardSaved>(element, version, {grad, derivative}, {grad_x}, n, stream);
}

#endif  // KERNELS_ONLY
