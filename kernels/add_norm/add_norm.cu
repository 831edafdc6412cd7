// A residual connection and LayerNorm after it, h = x + residual and y = LayerNorm(h), one idea a version. Each version
// changes the one before it, but for v5, which goes on from v3; the gradient has one version.
//
//   v1  two kernels: the addition, then LayerNorm, which reads h three times
//   v2  one kernel: h stays in registers, and each input is read once
//   v3  16-byte vectors
//   v4  Welford's form: mean and variance in one pass over the registers
//   v5  v3 again, with a block as large as the row needs, and a warp alone for a short row
//
// x, residual, y, h: [rows, cols]; weight, bias: [cols]; mean, rstd: [rows]. h is rounded to the element type, since the next
// layer uses it; mean, variance and y are of that rounded h, y = (h - mean) * rstd * weight + bias, rstd = 1 / sqrt(variance +
// EPS). The gradient is in gradient.cuh.
#include <math.h>

#include "add_norm.h"
#include "gradient.cuh"
#include "launch.cuh"
#include "rows.cuh"

constexpr double EPS = 1e-5;
template <class T> struct Arrays {
    const T *x, *residual, *weight, *bias;
    T *y, *h;
    compute_t<T> *mean, *rstd;
};

template <class F> struct Moments {
    F mean, rstd;
};

// From the sum of squared differences from the mean; an empty row has the mean 0 and the variance 0.
template <class F> __device__ F rstd_of(F squares, int64_t cols) { return 1 / sqrt(squares / max(cols, int64_t(1)) + F(EPS)); }
template <class F> __device__ F mean_of(F sum, int64_t cols) { return sum / max(cols, int64_t(1)); }

// ---------------------------------------------------------------------------------------------------
namespace v1 {
template <class T>
__global__ void add(Arrays<T> a, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i < n) a.h[i] = to_element<T>(to_compute(a.x[i]) + to_compute(a.residual[i]));
}

template <class T>
__global__ void norm(Arrays<T> a, int64_t cols) {
    const T* h = a.h + blockIdx.x * cols;
    T* y = a.y + blockIdx.x * cols;
    compute_t<T> sum = 0, squares = 0;
    for (int64_t c = threadIdx.x; c < cols; c += THREADS) sum += to_compute(h[c]);
    const compute_t<T> mean = mean_of(Block::sum<0>(sum), cols);
    for (int64_t c = threadIdx.x; c < cols; c += THREADS) {
        const compute_t<T> d = to_compute(h[c]) - mean;
        squares += d * d;
    }
    const compute_t<T> rstd = rstd_of(Block::sum<1>(squares), cols);
    for (int64_t c = threadIdx.x; c < cols; c += THREADS) {
        y[c] = to_element<T>((to_compute(h[c]) - mean) * rstd * to_compute(a.weight[c]) + to_compute(a.bias[c]));
    }
    if (threadIdx.x == 0) {
        a.mean[blockIdx.x] = mean;
        a.rstd[blockIdx.x] = rstd;
    }
}

template <class T>
void launch(const Arrays<T>& a, int64_t rows, int64_t cols, cudaStream_t stream) {
    const unsigned parts = divide_up(rows * cols, THREADS), blocks = rows;
    if (parts) add<<<parts, THREADS, 0, stream>>>(a, rows * cols);
    norm<<<blocks, THREADS, 0, stream>>>(a, cols);
}
}  // namespace v1

// ---------------------------------------------------------------------------------------------------
// From here on a thread keeps N elements of its row in registers; see rows.cuh.

struct TwoPasses {
    template <class Group, int WIDTH, class F, int N> static __device__ Moments<F> of(const F (&h)[N], int cols) {
        F sum = 0, squares = 0;
        for (int k = 0; k < N; ++k) sum += h[k];
        const F mean = mean_of(Group::template sum<0>(sum), cols);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const F d = column<Group, WIDTH>(k) < cols ? h[k] - mean : 0;
            squares += d * d;
        }
        return {mean, rstd_of(Group::template sum<1>(squares), cols)};
    }
};

template <class Statistics, class Group, int WIDTH, int N, class T>
__device__ void row_in_registers(const Arrays<T>& a, int64_t row, int64_t cols) {
    using F = compute_t<T>;
    T first[N], second[N];
    load_row<Group, WIDTH>(a.x + row * cols, cols, first);
    load_row<Group, WIDTH>(a.residual + row * cols, cols, second);
    F h[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
        first[k] = to_element<T>(to_compute(first[k]) + to_compute(second[k]));
        h[k] = to_compute(first[k]);  // as rounded
    }
    store_row<Group, WIDTH>(a.h + row * cols, cols, first);
    const Moments<F> m = Statistics::template of<Group, WIDTH>(h, cols);
    load_row<Group, WIDTH>(a.weight, cols, first);
    load_row<Group, WIDTH>(a.bias, cols, second);
#pragma unroll
    for (int k = 0; k < N; ++k) {
        first[k] = to_element<T>((h[k] - m.mean) * m.rstd * to_compute(first[k]) + to_compute(second[k]));
    }
    store_row<Group, WIDTH>(a.y + row * cols, cols, first);
    if (threadIdx.x == 0) {
        a.mean[row] = m.mean;
        a.rstd[row] = m.rstd;
    }
}

namespace v2 {
constexpr int LEAST = 8, MOST = 32;  // elements of a thread: 8, 16 or 32

template <class Statistics, int N, class T>
__global__ void kernel(Arrays<T> a, int64_t cols) {
    row_in_registers<Statistics, FixedBlock, 1, N>(a, blockIdx.x, cols);
}

template <class Statistics = TwoPasses, int N = LEAST, class T>
void launch(const Arrays<T>& a, int64_t rows, int64_t cols, cudaStream_t stream) {
    const unsigned blocks = rows;
    if (cols <= N * THREADS) {
        kernel<Statistics, N><<<blocks, THREADS, 0, stream>>>(a, cols);
    } else if constexpr (N < MOST) {
        launch<Statistics, 2 * N>(a, rows, cols, stream);
    } else {
        v1::launch(a, rows, cols, stream);  // the row is too long
    }
}
}  // namespace v2

// ---------------------------------------------------------------------------------------------------
// A vector that lies in two rows, or that begins anywhere, is no vector: then v2 runs.
template <class T>
bool in_vectors(const Arrays<T>& a, int64_t cols) {
    return in_vectors<T>(cols, a.x, a.residual, a.weight, a.bias, a.y, a.h);
}

namespace v3 {
constexpr int LEAST = 8, MOST = 32;

template <class Statistics, int N, class T>
__global__ void kernel(Arrays<T> a, int64_t cols) {
    row_in_registers<Statistics, FixedBlock, Vec<T>::SIZE, N>(a, blockIdx.x, cols);
}

template <class Statistics = TwoPasses, int N = LEAST, class T>
void launch(const Arrays<T>& a, int64_t rows, int64_t cols, cudaStream_t stream) {
    const unsigned blocks = rows;
    if (!in_vectors(a, cols)) {
        v2::launch<Statistics>(a, rows, cols, stream);
    } else if (cols <= N * THREADS) {
        kernel<Statistics, N><<<blocks, THREADS, 0, stream>>>(a, cols);
    } else if constexpr (N < MOST) {
        launch<Statistics, 2 * N>(a, rows, cols, stream);
    } else {
        v1::launch(a, rows, cols, stream);
    }
}
}  // namespace v3

// ---------------------------------------------------------------------------------------------------
namespace v4 {
// Of n elements: their mean, and the sum of their squared differences from it.
template <class F> struct State {
    F n, mean, squares;
};

// Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983.
template <class F> __device__ State<F> merged(State<F> a, State<F> b) {
    const F n = a.n + b.n, d = a.mean - b.mean, inverse = 1 / max(n, F(1));
    return {n, (a.n * a.mean + b.n * b.mean) * inverse, a.squares + b.squares + d * d * (a.n * b.n * inverse)};
}

template <class F> __device__ State<F> merged_lanes(State<F> s) {
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
        s = merged(s, {__shfl_xor_sync(0xffffffff, s.n, lanes), __shfl_xor_sync(0xffffffff, s.mean, lanes),
                       __shfl_xor_sync(0xffffffff, s.squares, lanes)});
    }
    return s;
}

template <class F> __device__ State<F> merged_in_block(State<F> s) {
    __shared__ F part[3][LANES];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    s = merged_lanes(s);
    if (lane == 0) part[0][warp] = s.n, part[1][warp] = s.mean, part[2][warp] = s.squares;
    __syncthreads();
    const bool there = lane * LANES < blockDim.x;
    s = merged_lanes(there ? State<F>{part[0][lane], part[1][lane], part[2][lane]} : State<F>{0, 0, 0});
    // Lanes that merge each other's states may differ, since of two products that are added an FMA rounds one: lane 0's count.
    return {s.n, __shfl_sync(0xffffffff, s.mean, 0), __shfl_sync(0xffffffff, s.squares, 0)};
}

struct Welford {
    template <class Group, int WIDTH, class F, int N> static __device__ Moments<F> of(const F (&h)[N], int cols) {
        State<F> s{0, 0, 0};  // the Group is a FixedBlock
#pragma unroll
        for (int k = 0; k < N; ++k) {
            if (column<Group, WIDTH>(k) >= cols) continue;
            const F d = h[k] - s.mean;
            s.n += 1;
            s.mean += d * (F(1) / (k + 1));  // the elements that are there come first: this is the k-th
            s.squares += d * (h[k] - s.mean);
        }
        s = merged_in_block(s);
        return {s.mean, rstd_of(s.squares, cols)};
    }
};

template <class T>
void launch(const Arrays<T>& a, int64_t rows, int64_t cols, cudaStream_t stream) {
    v3::launch<Welford>(a, rows, cols, stream);
}
}  // namespace v4

// ---------------------------------------------------------------------------------------------------
namespace v5 {
constexpr int LEAST = 8, MOST = 32;  // elements of a thread where a warp has the row: 8, 16 or 32
// Elements of a thread where a block has the row.
template <class T> constexpr int EACH = sizeof(T) == 8 ? 8 : 16;

template <class Group, int WIDTH, int N, class T>
__global__ void __launch_bounds__(Group::MOST_THREADS, 1) kernel(Arrays<T> a, int64_t rows, int64_t cols) {
    const int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row < rows) row_in_registers<TwoPasses, Group, WIDTH, N>(a, row, cols);
}

template <int WIDTH, int N, class T>
void launch_fitted(const Arrays<T>& a, int64_t rows, int64_t cols, cudaStream_t stream) {
    if (cols <= N * LANES) {
        const dim3 threads(LANES, Warp::MOST_THREADS / LANES);
        const unsigned blocks = divide_up(rows, threads.y);
        kernel<Warp, WIDTH, N><<<blocks, threads, 0, stream>>>(a, rows, cols);
    } else if constexpr (N < MOST) {
        launch_fitted<WIDTH, 2 * N>(a, rows, cols, stream);
    } else {
        const unsigned blocks = rows, threads = divide_up(cols, EACH<T> * LANES) * LANES;
        kernel<Block, WIDTH, EACH<T>><<<blocks, threads, 0, stream>>>(a, rows, cols);
    }
}

template <class T>
void launch(const Arrays<T>& a, int64_t rows, int64_t cols, cudaStream_t stream) {
    if (cols > EACH<T> * Block::MOST_THREADS) {
        v1::launch(a, rows, cols, stream);
    } else if (in_vectors(a, cols)) {
        launch_fitted<Vec<T>::SIZE, LEAST>(a, rows, cols, stream);
    } else {
        launch_fitted<1, LEAST>(a, rows, cols, stream);
    }
}
}  // namespace v5

// ---------------------------------------------------------------------------------------------------
// From a version and an element type at run time to a template instance.

template <class T>
const char* launch_as(int64_t version, const Arrays<T>& a, int64_t rows, int64_t cols, cudaStream_t stream) {
#define VERSION(number)                                               \
    if constexpr (builds(number)) {                                   \
        if (version == number) {                                      \
            if (rows == 0) return nullptr; /* no grid is empty */     \
            v##number::launch(a, rows, cols, stream);                 \
            return launch_error();                                    \
        }                                                             \
    }
    VERSION(1)
    VERSION(2)
    VERSION(3)
    VERSION(4)
    VERSION(5)
#undef VERSION
    return NO_SUCH_VERSION;
}

const char* add_norm_forward(Element element, int64_t version, const AddNorm& a, int64_t rows, int64_t cols, void* stream) {
    return with_type(element, [&](auto t) {
        using T = typename decltype(t)::type;
        using F = compute_t<T>;
        const Arrays<T> arrays{static_cast<const T*>(a.x), static_cast<const T*>(a.residual), static_cast<const T*>(a.weight),
                               static_cast<const T*>(a.bias), static_cast<T*>(a.y), static_cast<T*>(a.h),
                               static_cast<F*>(a.mean), static_cast<F*>(a.rstd)};
        return launch_as<T>(version, arrays, rows, cols, static_cast<cudaStream_t>(stream));
    });
}

int64_t add_norm_parts(int64_t rows, int64_t cols) { return gradient::parts(rows, cols); }

const char* add_norm_backward(Element element, int64_t version, const AddNormGradient& a, int64_t rows, int64_t cols,
                              void* stream) {
    if (version < 1 || version > 5 || !builds(version)) return NO_SUCH_VERSION;
    return with_type(element, [&](auto t) {
        using T = typename decltype(t)::type;
        using F = compute_t<T>;
        const gradient::Arrays<T> arrays{
            static_cast<const T*>(a.grad_y), static_cast<const T*>(a.grad_h), static_cast<const T*>(a.h),
            static_cast<const T*>(a.weight), static_cast<const F*>(a.mean), static_cast<const F*>(a.rstd),
            static_cast<T*>(a.grad_x), static_cast<T*>(a.grad_weight), static_cast<T*>(a.grad_bias), static_cast<F*>(a.parts)};
        if (cols == 0) return static_cast<const char*>(nullptr);  // no grid is empty
        gradient::launch(arrays, rows, cols, static_cast<cudaStream_t>(stream));
        return launch_error();
    });
}
