// What the bindings call and gelu_one.cu defines: no CUDA and no torch names on either side.
#pragma once

// y = gelu(x) for n bfloat16 numbers at multiples of 16 bytes, on `stream` (a cudaStream_t) of the current device. Returns
// nullptr, or what went wrong.
const char* launch_gelu_one(const void* x, void* y, int n, void* stream);
