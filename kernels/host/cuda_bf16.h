// Stands in for CUDA's header of this name: __nv_bfloat16 and __nv_bfloat162.
#pragma once
#include "cuda_host_small_float.h"

using __nv_bfloat16 = ::cuda_host::Small<8, 7>;
using __nv_bfloat162 = ::cuda_host::Small2<8, 7>;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

CUDA_HOST_SMALL_FLOAT(__nv_bfloat16, __nv_bfloat162, bfloat16, bfloat162)

constexpr __nv_bfloat16 __float2bfloat16_rz(float x) {
    return __nv_bfloat16::from_bits(::cuda_host::narrow<8, 7>(x, true));
}
