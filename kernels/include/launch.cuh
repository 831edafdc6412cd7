// What every launcher does: pick a version that this build holds, turn an element type at run time into a template
// argument, and say what came of the launch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "element.cuh"
#include "element.h"

// Set to one version to compile that one alone: a short way from an edit to a launch. 0 compiles all.
#ifndef BUILD_VERSION
#define BUILD_VERSION 0
#endif
constexpr bool builds(int64_t version) { return BUILD_VERSION == 0 || BUILD_VERSION == version; }
// torch_op.h knows it by its first words, and adds which version was asked for.
#define TEXT_OF_VALUE(value) #value
#define TEXT_OF(macro) TEXT_OF_VALUE(macro)
constexpr const char* NO_SUCH_VERSION = BUILD_VERSION ? "no such version: this build holds " TEXT_OF(BUILD_VERSION) " alone"
                                                      : "no such version: the comment at the top of the .cu file lists them";

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T> struct Type { using type = T; };

// Calls `launch` with Type<T>, T being the type that `element` stands for, and returns what it returns.
template <class Launch>
const char* with_type(Element element, Launch launch) {
    switch (element) {
        case Element::half: return launch(Type<__half>());
        case Element::bfloat16: return launch(Type<__nv_bfloat16>());
        case Element::float32: return launch(Type<float>());
        case Element::float64: return launch(Type<double>());
    }
    return "no such element type";
}

#ifndef KERNELS_ONLY  // NVRTC knows nothing of launches
// nullptr where the launch before was accepted, or what CUDA says; a fault of an earlier kernel shows here too.
inline const char* launch_error() {
    const cudaError_t error = cudaGetLastError();
    return error ? cudaGetErrorString(error) : nullptr;
}
#endif
