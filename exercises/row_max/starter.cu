// The largest element of each row of a matrix: y[r] = max(x[r][0], ..., x[r][cols - 1]).
//
//   v1  a warp a row: each lane looks at every 32nd element, then the lanes exchange what they have found
#include <math.h>

#include "launch.cuh"
#include "row_sum.h"

constexpr int LANES = 32;
constexpr int WARPS = 4;  // of a block

template <class T>
__global__ void row_max(const T* x, T* y, int64_t rows, int64_t cols) {
    const int lane = threadIdx.x;
    const int64_t row = int64_t(blockIdx.x) * WARPS + threadIdx.y;
    if (row >= rows) return;  // a whole warp
    compute_t<T> most = -INFINITY;
    // Your code here.
    if (lane == 0) y[row] = to_element<T>(most);
}

// ---------------------------------------------------------------------------------------------------
// The launch: nothing to do here.
const char* row_sum_forward(Element element, int64_t, const void* x, void* y, int64_t rows, int64_t cols, void* stream) {
    if (rows == 0) return nullptr;
    return with_type(element, [&](auto t) {
        using T = typename decltype(t)::type;
        const dim3 threads(LANES, WARPS);
        row_max<T><<<divide_up(rows, WARPS), threads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const T*>(x),
                                                                                              static_cast<T*>(y), rows, cols);
        return launch_error();
    });
}
