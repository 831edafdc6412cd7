// Launchers that ctypes calls: every one returns cudaGetLastError().
#pragma once
#include <cuda_runtime.h>
#define EXPORT extern "C" __attribute__((visibility("default")))
