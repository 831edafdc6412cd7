// Softmax of each row of a matrix, forward and gradient, one idea a version. Each version changes the one before it.
//
//   v1  three passes over memory: the maximum, the sum of the exponentials, the result
//   v2  the online form: maximum and sum in one pass, so that x is read twice
//   v3  the row stays in registers: x is read once
//   v4  16-byte vectors
//   v5  a block as large as the row needs, and for a short row as few lanes of a warp
//   v6  hardware exp2 and one reciprocal a row: fewer instructions an element
//
// x, y: [rows, cols]: y[r][c] = exp(x[r][c] - m) / s, m the maximum of the row and s the sum of its exp(x[r][c] - m). The
// gradient is grad_x[r][c] = y[r][c] * (grad[r][c] - d), d the sum of the row's grad[r][c] * y[r][c]: one sum and no
// exponential, so v2 and v6 leave it as it is.
//
// A maximum passes over a NaN; the sum does not, and divides every element of the row. An infinite maximum makes a NaN too.
#include <float.h>
#include <math.h>

#include "approx.cuh"
#include "launch.cuh"
#include "softmax.h"
#include "vec.cuh"

constexpr int LANES = 32;
constexpr int THREADS = 256;  // of a block in v1 to v4

// What goes in and out: forward reads x and writes y, backward reads grad and y and writes grad_x.
template <int IN, class T> struct Arrays {
    const T* in[IN];
    T* out;
};

// ---------------------------------------------------------------------------------------------------
// One value from those of all threads that share a row, a group; each of them gets it, with the same bits.

struct Max {
    template <class F> static __device__ F of(F a, F b) { return max(a, b); }
    static constexpr float OF_NOTHING = -INFINITY;
};

struct Sum {
    template <class F> static __device__ F of(F a, F b) { return a + b; }
    static constexpr float OF_NOTHING = 0;
};

// W neighbouring lanes of a warp: 8, 16 or 32. Other lanes of the warp have other rows, or none.
template <int W> struct Lanes {
    static constexpr int MOST_THREADS = 128;  // of a block, in which W have a row
    static __device__ int threads() { return W; }
    static __device__ unsigned mask() {
        return 0xffffffff >> (LANES - W) << ((threadIdx.y * blockDim.x + threadIdx.x) % LANES / W * W);
    }
    template <class Op, class F> static __device__ F all(F value) {
        for (int s = W / 2; s > 0; s /= 2) value = Op::of(value, __shfl_xor_sync(mask(), value, s));
        return value;
    }
};
using Warp = Lanes<LANES>;

struct Block {
    static constexpr int MOST_THREADS = 512;
    static __device__ int threads() { return blockDim.x; }
    // There is a barrier in it, and one array for each Op: call it once for an Op.
    template <class Op, class F> static __device__ F all(F value) {
        __shared__ F part[LANES];
        const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
        value = Warp::all<Op>(value);
        if (lane == 0) part[warp] = value;
        __syncthreads();
        return Warp::all<Op>(lane * LANES < blockDim.x ? part[lane] : F(Op::OF_NOTHING));
    }
};

struct FixedBlock : Block {
    static __device__ int threads() { return THREADS; }  // known to the compiler
};

// ---------------------------------------------------------------------------------------------------
namespace v1 {
template <class T>
__global__ void kernel(Arrays<1, T> a, int64_t cols) {
    const T* x = a.in[0] + blockIdx.x * cols;
    T* y = a.out + blockIdx.x * cols;
    compute_t<T> most = Max::OF_NOTHING, sum = 0;
    for (int64_t c = threadIdx.x; c < cols; c += THREADS) most = max(most, to_compute(x[c]));
    most = Block::all<Max>(most);
    for (int64_t c = threadIdx.x; c < cols; c += THREADS) sum += exp(to_compute(x[c]) - most);
    sum = Block::all<Sum>(sum);
    for (int64_t c = threadIdx.x; c < cols; c += THREADS) y[c] = to_element<T>(exp(to_compute(x[c]) - most) / sum);
}

template <class T>
__global__ void kernel(Arrays<2, T> a, int64_t cols) {
    const T *grad = a.in[0] + blockIdx.x * cols, *y = a.in[1] + blockIdx.x * cols;
    T* grad_x = a.out + blockIdx.x * cols;
    compute_t<T> sum = 0;
    for (int64_t c = threadIdx.x; c < cols; c += THREADS) sum += to_compute(grad[c]) * to_compute(y[c]);
    sum = Block::all<Sum>(sum);
    for (int64_t c = threadIdx.x; c < cols; c += THREADS) {
        grad_x[c] = to_element<T>(to_compute(y[c]) * (to_compute(grad[c]) - sum));
    }
}

template <template <class> class Mode, int IN, class T>
void launch(Arrays<IN, T> a, int64_t rows, int64_t cols, cudaStream_t stream) {
    const unsigned blocks = rows;
    kernel<<<blocks, THREADS, 0, stream>>>(a, cols);
}
}  // namespace v1

// ---------------------------------------------------------------------------------------------------
// Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018: a sum of exponentials that is relative to the
// maximum so far, and is scaled anew wherever that grows.
namespace v2 {
template <class T>
__global__ void kernel(Arrays<1, T> a, int64_t cols) {
    const T* x = a.in[0] + blockIdx.x * cols;
    T* y = a.out + blockIdx.x * cols;
    // The lowest number and not -inf: were the row to begin with -inf, -inf - -inf would be NaN.
    compute_t<T> most = sizeof(T) == 8 ? -DBL_MAX : -FLT_MAX, sum = 0;
    for (int64_t c = threadIdx.x; c < cols; c += THREADS) {
        const compute_t<T> value = to_compute(x[c]), before = most;
        most = max(before, value);
        sum = sum * exp(before - most) + exp(value - most);
    }
    const compute_t<T> own = most;
    most = Block::all<Max>(own);
    sum = Block::all<Sum>(sum * exp(own - most));
    for (int64_t c = threadIdx.x; c < cols; c += THREADS) y[c] = to_element<T>(exp(to_compute(x[c]) - most) / sum);
}

template <template <class> class Mode, class T>
void launch(Arrays<1, T> a, int64_t rows, int64_t cols, cudaStream_t stream) {
    const unsigned blocks = rows;
    kernel<<<blocks, THREADS, 0, stream>>>(a, cols);
}

template <template <class> class Mode, class T>
void launch(Arrays<2, T> a, int64_t rows, int64_t cols, cudaStream_t stream) {
    v1::launch<Mode>(a, rows, cols, stream);
}
}  // namespace v2

// ---------------------------------------------------------------------------------------------------
// From here on a thread keeps N elements of its row in registers, of each input, and x is read once. The two modes by what
// they do with a row that is there: v is what the thread keeps of the inputs, and v[0] becomes the result.

struct Exact {
    template <class F> static __device__ F exp_of(F x) { return exp(x); }
    // By what `ratio` divides.
    template <class F> static __device__ F divisor(F sum) { return sum; }
    template <class F> static __device__ F ratio(F value, F divisor) { return value / divisor; }
};

template <class Math> struct Forward {
    static constexpr int IN = 1;
    static constexpr float BEYOND = Max::OF_NOTHING;  // what stands in for elements beyond the end of the row
    template <class Group, class F, int N> static __device__ void apply(F (&v)[1][N]) {
        F most = v[0][0], sum = 0;
#pragma unroll
        for (int k = 1; k < N; ++k) most = max(most, v[0][k]);
        most = Group::template all<Max>(most);
#pragma unroll
        for (int k = 0; k < N; ++k) sum += v[0][k] = Math::exp_of(v[0][k] - most);
        const F divisor = Math::divisor(Group::template all<Sum>(sum));
#pragma unroll
        for (int k = 0; k < N; ++k) v[0][k] = Math::ratio(v[0][k], divisor);
    }
};

struct Gradient {
    static constexpr int IN = 2;
    static constexpr float BEYOND = Sum::OF_NOTHING;
    template <class Group, class F, int N> static __device__ void apply(F (&v)[2][N]) {
        F sum = 0;
#pragma unroll
        for (int k = 0; k < N; ++k) sum += v[0][k] * v[1][k];
        sum = Group::template all<Sum>(sum);
#pragma unroll
        for (int k = 0; k < N; ++k) v[0][k] = v[1][k] * (v[0][k] - sum);
    }
};
template <class> using Backward = Gradient;  // there is no exponential in it, and no division

// Where the k-th element of a thread stands in its row: WIDTH neighbours, and then the next ones a group's width away.
template <class Group, int WIDTH> __device__ int column(int k) { return k * Group::threads() + threadIdx.x * WIDTH; }

template <class Group, int WIDTH, class T, int N>
__device__ void load_row(const T* row, int cols, T beyond, T (&v)[N]) {
#pragma unroll
    for (int k = 0; k < N; k += WIDTH) {
        const int c = column<Group, WIDTH>(k);
        if constexpr (WIDTH == 1) {
            v[k] = c < cols ? row[c] : beyond;
        } else {
            Vec<T> piece;
            for (int e = 0; e < WIDTH; ++e) piece.at[e] = beyond;
            if (c < cols) piece = load_vec(row + c);
            for (int e = 0; e < WIDTH; ++e) v[k + e] = piece.at[e];
        }
    }
}

template <class Group, int WIDTH, class T, int N>
__device__ void store_row(T* row, int cols, const compute_t<T> (&v)[N]) {
#pragma unroll
    for (int k = 0; k < N; k += WIDTH) {
        const int c = column<Group, WIDTH>(k);
        if (c >= cols) continue;
        if constexpr (WIDTH == 1) {
            row[c] = to_element<T>(v[k]);
        } else {
            Vec<T> piece;
            for (int e = 0; e < WIDTH; ++e) piece.at[e] = to_element<T>(v[k + e]);
            store_vec(row + c, piece);
        }
    }
}

template <class Mode, class Group, int WIDTH, int N, class T>
__device__ void row_in_registers(const Arrays<Mode::IN, T>& a, int64_t row, int64_t cols) {
    T loaded[Mode::IN][N];
#pragma unroll
    for (int i = 0; i < Mode::IN; ++i) {
        load_row<Group, WIDTH>(a.in[i] + row * cols, cols, to_element<T>(Mode::BEYOND), loaded[i]);
    }
    compute_t<T> v[Mode::IN][N];
#pragma unroll
    for (int i = 0; i < Mode::IN; ++i) {
#pragma unroll
        for (int k = 0; k < N; ++k) v[i][k] = to_compute(loaded[i][k]);
    }
    Mode::template apply<Group>(v);
    store_row<Group, WIDTH>(a.out + row * cols, cols, v[0]);
}

namespace v3 {
constexpr int WIDTH = 1, LEAST = 8, MOST = 32;  // elements of a thread: 8, 16 or 32

template <class Mode, int N, class T>
__global__ void kernel(Arrays<Mode::IN, T> a, int64_t cols) {
    row_in_registers<Mode, FixedBlock, WIDTH, N>(a, blockIdx.x, cols);
}

template <template <class> class Mode, int N = LEAST, int IN, class T>
void launch(Arrays<IN, T> a, int64_t rows, int64_t cols, cudaStream_t stream) {
    const unsigned blocks = rows;
    if (cols <= N * THREADS) {
        kernel<Mode<Exact>, N><<<blocks, THREADS, 0, stream>>>(a, cols);
    } else if constexpr (N < MOST) {
        launch<Mode, 2 * N>(a, rows, cols, stream);
    } else {
        v2::launch<Mode>(a, rows, cols, stream);  // the row is too long
    }
}
}  // namespace v3

// ---------------------------------------------------------------------------------------------------
// A vector that lies in two rows, or that begins anywhere, is no vector: then v3 runs.
template <int IN, class T>
bool in_vectors(const Arrays<IN, T>& a, int64_t cols) {
    bool aligned = is_vec_aligned(a.out) && cols % Vec<T>::SIZE == 0;
    for (const T* p : a.in) aligned = aligned && is_vec_aligned(p);
    return aligned;
}

namespace v4 {
constexpr int LEAST = 8, MOST = 32;

template <class Mode, int N, class T>
__global__ void kernel(Arrays<Mode::IN, T> a, int64_t cols) {
    row_in_registers<Mode, FixedBlock, Vec<T>::SIZE, N>(a, blockIdx.x, cols);
}

template <template <class> class Mode, int N = LEAST, int IN, class T>
void launch(Arrays<IN, T> a, int64_t rows, int64_t cols, cudaStream_t stream) {
    const unsigned blocks = rows;
    if (!in_vectors(a, cols)) {
        v3::launch<Mode>(a, rows, cols, stream);
    } else if (cols <= N * THREADS) {
        kernel<Mode<Exact>, N><<<blocks, THREADS, 0, stream>>>(a, cols);
    } else if constexpr (N < MOST) {
        launch<Mode, 2 * N>(a, rows, cols, stream);
    } else {
        v2::launch<Mode>(a, rows, cols, stream);
    }
}
}  // namespace v4

// ---------------------------------------------------------------------------------------------------
namespace v5 {
// Elements of a thread: of float64 fewer, since a block's 512 threads have 128 registers each.
template <class T> constexpr int EACH = sizeof(T) == 8 ? 8 : 16;
constexpr int FEW_LANES = 8;   // that have a row together, at the least
constexpr int EACH_LONG = 32;  // elements of a thread where a whole warp has a row that is too long for EACH

// No __launch_bounds__: with one, ptxas takes more registers, so that fewer blocks fit, or spills some of float64. Without, a
// thread of a Block takes at most the 128 that there are for each of its 512; a test holds it to that.
template <class Mode, class Group, int WIDTH, int N, class T>
__global__ void kernel(Arrays<Mode::IN, T> a, int64_t rows, int64_t cols) {
    const int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row < rows) row_in_registers<Mode, Group, WIDTH, N>(a, row, cols);
}

template <class Mode, int WIDTH, int W, int N, int IN, class T>
void launch_lanes(Arrays<IN, T> a, int64_t rows, int64_t cols, cudaStream_t stream) {
    const dim3 threads(W, Lanes<W>::MOST_THREADS / W);
    const unsigned blocks = divide_up(rows, threads.y);
    kernel<Mode, Lanes<W>, WIDTH, N><<<blocks, threads, 0, stream>>>(a, rows, cols);
}

template <class Mode, int WIDTH, int W = FEW_LANES, int IN, class T>
void launch_fitted(Arrays<IN, T> a, int64_t rows, int64_t cols, cudaStream_t stream) {
    if (cols <= EACH<T> * W) {
        launch_lanes<Mode, WIDTH, W, EACH<T>>(a, rows, cols, stream);
    } else if constexpr (W < LANES) {
        launch_fitted<Mode, WIDTH, 2 * W>(a, rows, cols, stream);
    } else if (cols <= EACH_LONG * LANES) {
        launch_lanes<Mode, WIDTH, LANES, EACH_LONG>(a, rows, cols, stream);
    } else {
        const unsigned blocks = rows, threads = divide_up(cols, EACH<T> * LANES) * LANES;
        kernel<Mode, Block, WIDTH, EACH<T>><<<blocks, threads, 0, stream>>>(a, rows, cols);
    }
}

template <template <class> class Mode, class Math = Exact, int IN, class T>
void launch(Arrays<IN, T> a, int64_t rows, int64_t cols, cudaStream_t stream) {
    if (cols > EACH<T> * Block::MOST_THREADS) {
        v2::launch<Mode>(a, rows, cols, stream);
    } else if (in_vectors(a, cols)) {
        launch_fitted<Mode<Math>, Vec<T>::SIZE>(a, rows, cols, stream);
    } else {
        launch_fitted<Mode<Math>, 1>(a, rows, cols, stream);
    }
}
}  // namespace v5

// ---------------------------------------------------------------------------------------------------
namespace v6 {
struct Math {
    // Results below 2^-126 become 0. (x could be scaled by log2(e) before the maximum is taken off it, in one fused
    // operation, but then it may overflow.)
    static __device__ float exp_of(float x) { return approx_exp2(x * 1.44269504f); }
    static __device__ float divisor(float sum) { return approx_reciprocal(sum); }
    // There are no such instructions for double.
    static __device__ double exp_of(double x) { return exp(x); }
    static __device__ double divisor(double sum) { return 1 / sum; }
    template <class F> static __device__ F ratio(F value, F divisor) { return value * divisor; }
};

template <template <class> class Mode, int IN, class T>
void launch(Arrays<IN, T> a, int64_t rows, int64_t cols, cudaStream_t stream) {
    v5::launch<Mode, Math>(a, rows, cols, stream);
}
}  // namespace v6

// ---------------------------------------------------------------------------------------------------
// From a version and an element type at run time to a template instance.

template <template <class> class Mode, class T, int IN>
const char* launch_as(int64_t version, Arrays<IN, T> a, int64_t rows, int64_t cols, cudaStream_t stream) {
#define VERSION(number)                                               \
    if constexpr (builds(number)) {                                   \
        if (version == number) {                                      \
            if (rows == 0 || cols == 0) return nullptr;               \
            v##number::launch<Mode>(a, rows, cols, stream);           \
            return launch_error();                                    \
        }                                                             \
    }
    VERSION(1)
    VERSION(2)
    VERSION(3)
    VERSION(4)
    VERSION(5)
    VERSION(6)
#undef VERSION
    return NO_SUCH_VERSION;
}

const char* softmax_forward(Element element, int64_t version, const void* x, void* y, int64_t rows, int64_t cols,
                            void* stream) {
    return with_type(element, [&](auto t) {
        using T = typename decltype(t)::type;
        const Arrays<1, T> a{{static_cast<const T*>(x)}, static_cast<T*>(y)};
        return launch_as<Forward>(version, a, rows, cols, static_cast<cudaStream_t>(stream));
    });
}

const char* softmax_backward(Element element, int64_t version, const void* grad, const void* y, void* grad_x,
                             int64_t rows, int64_t cols, void* stream) {
    return with_type(element, [&](auto t) {
        using T = typename decltype(t)::type;
        const Arrays<2, T> a{{static_cast<const T*>(grad), static_cast<const T*>(y)}, static_cast<T*>(grad_x)};
        return launch_as<Backward>(version, a, rows, cols, static_cast<cudaStream_t>(stream));
    });
}
