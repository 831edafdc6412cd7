// The power of complex numbers: y = re^2 + im^2, where real and imaginary parts lie in turns.
//
//   v1  a thread a complex number
//
// x: [rows, 2 half], float32: x[r][2c] is the real part of number c of row r, x[r][2c + 1] the imaginary one. y: [rows, half].
#include "fold.h"
#include "launch.cuh"

constexpr int THREADS = 128;

__global__ void power(const float* x, float* y, int64_t numbers) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= numbers) return;
    float re = 0, im = 0;
    // Your code here.
    y[i] = re * re + im * im;
}

// ---------------------------------------------------------------------------------------------------
// The launch: nothing to do here.
const char* fold_forward(Element element, int64_t, const void* x, void* y, int64_t rows, int64_t cols, void* stream) {
    if (rows * cols == 0) return nullptr;
    if (element != Element::float32) return "x has to be float32";
    if (reinterpret_cast<uintptr_t>(x) % sizeof(float2)) return "x starts at no multiple of 8 bytes";
    const int64_t numbers = rows * cols / 2;
    power<<<divide_up(numbers, THREADS), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const float*>(x),
                                                                                          static_cast<float*>(y), numbers);
    return launch_error();
}
