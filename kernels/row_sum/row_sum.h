// What binding.cpp calls and row_sum.cu defines. No CUDA and no torch names, so that neither side compiles
// the other's headers.
#pragma once

#include <cstdint>

#include "element.h"

// y[r] = x[r][0] + ... + x[r][cols - 1]: launches one kernel on `stream` (a cudaStream_t) of the current device and
// returns without waiting. x holds rows * cols elements, row after row, y rows; they share no memory and may have any
// alignment. rows is at most 2^31 - 1, the longest grid.
// Returns nullptr, or what went wrong.
const char* row_sum_forward(Element element, int64_t version, const void* x, void* y, int64_t rows, int64_t cols,
                            void* stream);
