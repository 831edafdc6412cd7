// The element types that operators take, and the type they compute in.
//
//   stored as            computed in
//   __half               float
//   __nv_bfloat16        float
//   float                float
//   double               double      (for gradient checks)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class T> struct ComputeOf { using type = float; };
template <> struct ComputeOf<double> { using type = double; };
template <class T> using compute_t = typename ComputeOf<T>::type;

// Conversions are explicit calls, so that the code compiles the same with and without the
// implicit half operators, which PyTorch's build flags switch off (__CUDA_NO_HALF_OPERATORS__).
__device__ inline float to_compute(__half v) { return __half2float(v); }
__device__ inline float to_compute(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline float to_compute(float v) { return v; }
__device__ inline double to_compute(double v) { return v; }

// Rounds to nearest even.
template <class T> __device__ inline T to_element(compute_t<T> v);
template <> __device__ inline __half to_element<__half>(float v) { return __float2half_rn(v); }
template <> __device__ inline __nv_bfloat16 to_element<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }
template <> __device__ inline float to_element<float>(float v) { return v; }
template <> __device__ inline double to_element<double>(double v) { return v; }
