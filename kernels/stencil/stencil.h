// What binding.cpp calls and stencil.cu defines. No CUDA and no torch names, so that neither side compiles
// the other's headers.
#pragma once

#include <cstdint>

#include "element.h"

// y[r][c] = the mean of x[r - 2 ... r + 2][c - 2 ... c + 2], x being 0 outside of the matrix: launches one kernel on
// `stream` (a cudaStream_t) of the current device and returns without waiting. x and y hold rows * cols elements, row
// after row; they share no memory and may have any alignment. Returns nullptr, or what went wrong.
const char* stencil_forward(Element element, int64_t version, const void* x, void* y, int64_t rows, int64_t cols,
                            void* stream);
