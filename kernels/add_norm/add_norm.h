// What binding.cpp calls and add_norm.cu defines. No CUDA and no torch names, so that neither side compiles
// the other's headers.
#pragma once

#include <cstdint>

#include "element.h"

// Arrays hold elements of one type, row after row, may have any alignment, and an output shares no memory with another array;
// but mean, rstd and parts are float32, and float64 where the elements are. All functions launch on `stream` (a cudaStream_t)
// of the current device and return without waiting. rows is at most 2^31 - 1, the longest grid.
// They return nullptr, or what went wrong.

struct AddNorm {
    const void *x, *residual;    // rows * cols
    const void *weight, *bias;   // cols
    void *y, *h;                 // rows * cols
    void *mean, *rstd;           // rows
};

// h = x + residual, rounded to the element type; of each row of it mean and rstd = 1 / sqrt(variance + 1e-5), and
// y = (h - mean) * rstd * weight + bias. An empty row has the mean 0 and the variance 0.
const char* add_norm_forward(Element element, int64_t version, const AddNorm& arrays, int64_t rows, int64_t cols, void* stream);

struct AddNormGradient {
    const void *grad_y, *grad_h, *h;       // rows * cols
    const void* weight;                    // cols
    const void *mean, *rstd;               // rows
    void* grad_x;                          // rows * cols
    void *grad_weight, *grad_bias;         // cols
    void* parts;                           // 2 * add_norm_parts(rows, cols) * cols, to work in
};

int64_t add_norm_parts(int64_t rows, int64_t cols);

// The gradient of x, which is that of the residual too, and those of weight and bias, from the gradients of y and h.
const char* add_norm_backward(Element element, int64_t version, const AddNormGradient& arrays, int64_t rows, int64_t cols,
                              void* stream);
