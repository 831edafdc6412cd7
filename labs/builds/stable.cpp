// torch's stable ABI: small headers, and a library that later versions of torch load as it is.
#include <climits>
#include <cstdint>
#include <string>

#include "launch.h"
#include "torch_op.h"

using torch::stable::Tensor;

static Tensor gelu_one(Tensor x) {
    torch_op::check_device("gelu_one", x, "x");
    if (x.scalar_type() != torch::headeronly::ScalarType::BFloat16 || !torch_op::is_contiguous(x) || x.numel() == 0 ||
        x.numel() > INT_MAX) {
        torch_op::fail({"gelu_one: `x` must be contiguous bfloat16, of 1 to ", std::to_string(INT_MAX), " elements"});
    }
    if (reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 != 0) {
        torch_op::fail({"gelu_one: `x` must begin at a multiple of 16 bytes; pass x.clone()"});
    }
    const Tensor y = torch::stable::empty_like(x);
    const torch_op::Launch launch(x);
    launch.check("gelu_one", launch_gelu_one(x.data_ptr(), y.data_ptr(), static_cast<int>(x.numel()), launch.stream()));
    return y;
}

OP_LIBRARY(builds_stable, m) { m.def("gelu_one(Tensor x) -> Tensor"); }
OP_LIBRARY_IMPL(builds_stable, CompositeExplicitAutograd, m) { m.impl("gelu_one", OP_BOX(gelu_one)); }
