// The function that the bindings register, on torch's C++ tensors. Its includer chooses which of torch's headers come first.
#pragma once

#ifdef USE_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include <climits>
#include <cstdint>

#include "launch.h"

inline at::Tensor gelu_one_of(const at::Tensor& x) {
    TORCH_CHECK(x.scalar_type() == at::kBFloat16 && x.is_contiguous() && x.numel() > 0 && x.numel() <= INT_MAX,
                "gelu_one: `x` must be contiguous bfloat16, of 1 to ", INT_MAX, " elements");
    TORCH_CHECK(reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0,
                "gelu_one: `x` must begin at a multiple of 16 bytes; pass x.clone()");
    const at::Tensor y = at::empty_like(x);
    void* stream = nullptr;
#ifdef USE_CUDA
    TORCH_CHECK(x.is_cuda(), "gelu_one: `x` must be on a GPU; pass x.cuda()");
    const c10::cuda::CUDAGuard guard(x.device());
    stream = c10::cuda::getCurrentCUDAStream();
#endif
    const char* error = launch_gelu_one(x.data_ptr(), y.data_ptr(), static_cast<int>(x.numel()), stream);
    TORCH_CHECK(!error, "gelu_one: the launch, or a kernel before it, failed: ", error);
    return y;
}
