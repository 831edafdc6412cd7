// What binding.cpp calls and transpose.cu defines. No CUDA and no torch names, so that neither side compiles
// the other's headers.
#pragma once

#include <cstdint>

#include "element.h"

// y[c][r] = x[r][c]: launches one kernel on `stream` (a cudaStream_t) of the current device and returns without
// waiting. x holds rows * cols elements, row after row, y cols * rows; they share no memory and may have any alignment.
// Returns nullptr, or what went wrong.
const char* transpose_forward(Element element, int64_t version, const void* x, void* y, int64_t rows, int64_t cols,
                              void* stream);
