// torch.ops.NAMESPACE.*: checks, allocation, launch. Gradients and shapes under torch.compile are op.py's.
//
// NAMESPACE is a macro, a name for this very build, so that an edited kernel can be loaded beside the old one.
#include "torch_op.h"
#include "transpose.h"

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
            torch_op::fail({"transpose: `x` is ", torch_op::dtype_of(x),
                            "; transpose takes float16, bfloat16, float32 and float64. Convert it with .to(dtype)."});
    }
}

// Row after row without gaps; the stride of a dimension of size 1 is never used.
static bool is_contiguous(const Tensor& matrix) {
    const int64_t rows = matrix.size(0), cols = matrix.size(1);
    return matrix.numel() == 0 || ((cols == 1 || matrix.stride(1) == 1) && (rows == 1 || matrix.stride(0) == cols));
}

static Element check_matrix(const Tensor& x) {
    torch_op::check_device("transpose", x, "x");
    if (x.dim() != 2) {
        torch_op::fail({"transpose: `x` has shape ", torch_op::shape_of(x),
                        "; transpose takes two dimensions. Reshape it with .reshape(rows, cols)."});
    }
    if (!is_contiguous(x)) torch_op::fail({"transpose: `x` is not contiguous. Pass x.contiguous()."});
    return element_of(x);
}

static void check_output(const Tensor& y, const Tensor& x) {
    torch_op::check_device("transpose", y, "y");
    const std::string rows = std::to_string(x.size(0)), cols = std::to_string(x.size(1));
    const std::string shape = "[" + cols + ", " + rows + "]";
    if (y.get_device_index() != x.get_device_index() || y.scalar_type() != x.scalar_type() ||
        torch_op::shape_of(y) != shape || !is_contiguous(y)) {
        torch_op::fail({"transpose: `y` must be contiguous, ", torch_op::dtype_of(x), " of shape ", shape,
                        ", on the device of `x`; it is ", torch_op::dtype_of(y), " of shape ", torch_op::shape_of(y),
                        ". Make it with x.new_empty(", cols, ", ", rows, ")."});
    }
    // Not in place either: another thread reads what one has written over.
    if (torch_op::overlap(y, x, /*same_is_fine=*/false)) {
        torch_op::fail({"transpose: `y` shares memory with `x`. Pass a tensor of its own, made with x.new_empty(", cols,
                        ", ", rows, ")."});
    }
}

static void launch_into(const Tensor& y, const Tensor& x, Element element, int64_t version) {
    const Launch launch(x);
    launch.check("transpose", transpose_forward(element, version, x.data_ptr(), y.data_ptr(), x.size(0), x.size(1),
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
    const Tensor y = torch::stable::new_empty(x, {x.size(1), x.size(0)});
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
