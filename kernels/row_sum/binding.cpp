// torch.ops.NAMESPACE.*: checks, allocation, launch. Gradients and shapes under torch.compile are op.py's.
//
// NAMESPACE is a macro, a name for this very build, so that an edited kernel can be loaded beside the old one.
#include "row_sum.h"
#include "torch_op.h"

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using torch_op::Launch;

static Element element_of(const Tensor& x) {
    switch (x.scalar_type()) {
        case ScalarType::Half: return Element::half;
        case ScalarType::BFloat16: return Element::bfloat16;
        case ScalarType::Float: return Element::float32;
        case ScalarType::Double: return Element::float64;
        default:
            torch_op::fail({"row_sum: `x` is ", torch_op::dtype_of(x),
                            "; row_sum takes float16, bfloat16, float32 and float64. Convert it with .to(dtype)."});
    }
}

static Element check_matrix(const Tensor& x) {
    torch_op::check_device("row_sum", x, "x");
    if (x.dim() != 2) {
        torch_op::fail({"row_sum: `x` has shape ", torch_op::shape_of(x),
                        "; row_sum takes two dimensions. Reshape it with .reshape(rows, cols)."});
    }
    const int64_t rows = x.size(0), cols = x.size(1);
    // Row after row without gaps; the stride of a dimension of size 1 is never used.
    if (x.numel() > 0 && ((cols > 1 && x.stride(1) != 1) || (rows > 1 && x.stride(0) != cols))) {
        torch_op::fail({"row_sum: `x` is not contiguous. Pass x.contiguous()."});
    }
    if (rows > 2147483647) {
        torch_op::fail({"row_sum: `x` has ", std::to_string(rows),
                        " rows; a grid has 2147483647 blocks at most, one a row. Split x with .chunk."});
    }
    return element_of(x);
}

static void check_output(const Tensor& y, const Tensor& x) {
    torch_op::check_device("row_sum", y, "y");
    const std::string rows = std::to_string(x.size(0)), shape = "[" + rows + "]";
    if (y.get_device_index() != x.get_device_index() || y.scalar_type() != x.scalar_type() ||
        torch_op::shape_of(y) != shape || (y.size(0) > 1 && y.stride(0) != 1)) {
        torch_op::fail({"row_sum: `y` must be contiguous, ", torch_op::dtype_of(x), " of shape ", shape,
                        ", on the device of `x`; it is ", torch_op::dtype_of(y), " of shape ", torch_op::shape_of(y),
                        ". Make it with x.new_empty(", rows, ")."});
    }
    if (torch_op::overlap(y, x, /*same_is_fine=*/false)) {
        torch_op::fail({"row_sum: `y` shares memory with `x`. Pass a tensor of its own, made with x.new_empty(", rows,
                        ")."});
    }
}

static void launch_into(const Tensor& y, const Tensor& x, Element element, int64_t version) {
    const Launch launch(x);
    launch.check("row_sum", row_sum_forward(element, version, x.data_ptr(), y.data_ptr(), x.size(0), x.size(1),
                                            launch.stream()));
}

// Into an output that the caller made.
static void forward_out(Tensor x, Tensor y, int64_t version) {
    const Element element = check_matrix(x);
    check_output(y, x);
    launch_into(y, x, element, version);
}

// Into a new output.
static Tensor forward(Tensor x, int64_t version) {
    const Element element = check_matrix(x);
    const Tensor y = torch::stable::new_empty(x, {x.size(0)});
    launch_into(y, x, element, version);
    return y;
}

OP_LIBRARY(NAMESPACE, m) {
    m.def("forward(Tensor x, int version) -> Tensor");
    m.def("forward_out(Tensor x, Tensor(a!) y, int version) -> ()");
}

// For every device, so that a tensor on the wrong one gets our message and not the dispatcher's.
OP_LIBRARY_IMPL(NAMESPACE, CompositeExplicitAutograd, m) {
    m.impl("forward", OP_BOX(forward));
    m.impl("forward_out", OP_BOX(forward_out));
}
