// What binding.cpp calls and geometry.cu defines. No CUDA and no torch names, so that neither side compiles
// the other's headers.
#pragma once

#include <cstdint>

#include "element.h"

// How many elements a thread has in this version; 0 where this build has no such version.
int geometry_elements(int64_t version);

// y = gelu(x): launches one kernel over n elements, in as many blocks of `threads` threads (1 to 1024) as they need, at most
// 2^31 - 1, on `stream` (a cudaStream_t) of the current device, and returns without waiting. Both arrays hold n
// elements, in the same order, and may have any alignment.
// Returns nullptr, or what went wrong.
const char* geometry_forward(Element element, int64_t version, unsigned threads, const void* x, void* y, int64_t n,
                             void* stream);

struct Occupancy {
    int64_t blocks;        // of `threads` threads, that one SM of the current device holds at a time
    int64_t registers;     // of a thread
    int64_t shared_bytes;  // of a block
};

// What CUDA says of the kernel that geometry_forward launches. Returns nullptr, or what went wrong.
const char* geometry_occupancy(Element element, int64_t version, unsigned threads, Occupancy& found);
