// What binding.cpp calls and softmax.cu defines. No CUDA and no torch names, so that neither side compiles
// the other's headers.
#pragma once

#include <cstdint>

#include "element.h"

// Each launches one kernel on `stream` (a cudaStream_t) of the current device and returns without waiting. All arrays hold
// rows * cols elements of one type, row after row, and may have any alignment; the output shares no memory with an input.
// rows is at most 2^31 - 1, the longest grid.
// Returns nullptr, or what went wrong.

// y[r][c] = exp(x[r][c]) / (exp(x[r][0]) + ... + exp(x[r][cols - 1]))
const char* softmax_forward(Element element, int64_t version, const void* x, void* y, int64_t rows, int64_t cols,
                            void* stream);

// grad_x[r][c] = y[r][c] * (grad[r][c] - (grad[r][0] * y[r][0] + ... + grad[r][cols - 1] * y[r][cols - 1]))
const char* softmax_backward(Element element, int64_t version, const void* grad, const void* y, void* grad_x,
                             int64_t rows, int64_t cols, void* stream);
