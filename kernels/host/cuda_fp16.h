// Stands in for CUDA's header of this name: __half and __half2.
#pragma once
#include "cuda_host_small_float.h"

using __half = ::cuda_host::Small<5, 10>;
using __half2 = ::cuda_host::Small2<5, 10>;
using half = __half;
using half2 = __half2;

CUDA_HOST_SMALL_FLOAT(__half, __half2, half, half2)

constexpr __half __float2half_rz(float x) { return __half::from_bits(::cuda_host::narrow<5, 10>(x, true)); }
constexpr __half2 __lowhigh2highlow(__half2 x) { return {x.y, x.x}; }
