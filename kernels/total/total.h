// What binding.cpp calls and total.cu defines. No CUDA and no torch names, so that neither side compiles
// the other's headers.
#pragma once

#include <cstdint>

#include "element.h"

// sums[r] = x[r][0] + ... + x[r][cols - 1] and total[0] = sums[0] + ... + sums[rows - 1]: launches on `stream` (a
// cudaStream_t) of the current device and returns without waiting. x holds rows * cols elements, row after row, sums rows,
// total one; they share no memory and may have any alignment. tickets: an unsigned int that is 0 when the kernel begins and
// belongs to this launch alone. element: float32 or float64. rows is at most 2^31 - 1, the longest grid.
// Returns nullptr, or what went wrong.
const char* total_forward(Element element, int64_t version, const void* x, void* sums, void* total, void* tickets,
                          int64_t rows, int64_t cols, void* stream);
