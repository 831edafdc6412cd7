// What binding.cpp calls and copy.cu defines. No CUDA and no torch names, so that neither side compiles
// the other's headers.
#pragma once

#include <cstdint>

#include "element.h"

// y = x: launches one kernel over n elements on `stream` (a cudaStream_t) of the current device and returns
// without waiting. Both arrays hold n elements, in the same order, and may have any alignment.
// Returns nullptr, or what went wrong.
const char* copy_forward(Element element, int64_t version, const void* x, void* y, int64_t n, void* stream);
