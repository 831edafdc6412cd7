// What binding.cpp calls and gelu.cu defines. No CUDA and no torch names, so that neither side compiles
// the other's headers.
#pragma once

#include <cstdint>

#include "element.h"

// Each launches one kernel over n elements on `stream` (a cudaStream_t) of the current device and returns
// without waiting. All arrays hold n elements of one type, in the same order, and may have any alignment.
// Returns nullptr, or what went wrong.

// y = gelu(x)
const char* gelu_forward(Element element, int64_t version, const void* x, void* y, int64_t n, void* stream);

// y = gelu(x), derivative = gelu'(x)
const char* gelu_forward_derivative(Element element, int64_t version, const void* x, void* y, void* derivative,
                                    int64_t n, void* stream);

// grad_x = grad * gelu'(x)
const char* gelu_backward(Element element, int64_t version, const void* grad, const void* x, void* grad_x,
                          int64_t n, void* stream);

// grad_x = grad * derivative
const char* gelu_backward_saved(Element element, int64_t version, const void* grad, const void* derivative,
                                void* grad_x, int64_t n, void* stream);
