// What binding.cpp calls and fold.cu defines. No CUDA and no torch names, so that neither side compiles
// the other's headers.
#pragma once

#include <cstdint>

#include "element.h"

constexpr int64_t MOST_COLS = 1024;  // threads of a block

// y[r][c] = x[r][c] + x[r][c + half], half = (cols + 1) / 2, 0 standing for what is beyond the row: launches one kernel on
// `stream` (a cudaStream_t) of the current device and returns without waiting. x holds rows * cols elements, row after row,
// y rows * half; they share no memory and may have any alignment. rows is at most 2^31 - 1, cols at most MOST_COLS.
// Returns nullptr, or what went wrong.
const char* fold_forward(Element element, int64_t version, const void* x, void* y, int64_t rows, int64_t cols,
                         void* stream);
