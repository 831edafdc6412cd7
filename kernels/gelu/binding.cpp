// torch.ops.NAMESPACE.*: checks, allocation, launch. Gradients and shapes under torch.compile are op.py's.
//
// NAMESPACE is a macro, a name for this very build, so that an edited kernel can be loaded beside the old one.
#include "gelu.h"
#include "torch_op.h"

using torch::stable::Tensor;
using torch_op::Launch;

// ---- launches: tensors that have been checked, all dense and of one layout ----

static void launch_forward(const Tensor& y, const Tensor& x, int64_t version) {
    const Element element = torch_op::element_of("gelu", x, "x");
    const Launch launch(x);
    launch.check("gelu", version, gelu_forward(element, version, x.data_ptr(), y.data_ptr(), x.numel(), launch.stream()));
}

static void launch_forward_derivative(const Tensor& y, const Tensor& derivative, const Tensor& x, int64_t version) {
    const Element element = torch_op::element_of("gelu", x, "x");
    const Launch launch(x);
    launch.check("gelu", version,
                 gelu_forward_derivative(element, version, x.data_ptr(), y.data_ptr(), derivative.data_ptr(), x.numel(),
                                         launch.stream()));
}

static void launch_backward(const Tensor& grad_x, const Tensor& grad, const Tensor& x, int64_t version) {
    const Element element = torch_op::element_of("gelu backward", x, "x");
    const Launch launch(x);
    launch.check("gelu backward", version,
                 gelu_backward(element, version, grad.data_ptr(), x.data_ptr(), grad_x.data_ptr(), x.numel(), launch.stream()));
}

static void launch_backward_saved(const Tensor& grad_x, const Tensor& grad, const Tensor& derivative, int64_t version) {
    const Element element = torch_op::element_of("gelu backward", derivative, "derivative");
    const Launch launch(derivative);
    launch.check("gelu backward", version,
                 gelu_backward_saved(element, version, grad.data_ptr(), derivative.data_ptr(), grad_x.data_ptr(),
                                     derivative.numel(), launch.stream()));
}

// ---- into outputs that the caller made ----

static void forward_out(Tensor x, Tensor y, int64_t version) {
    torch_op::check_device("gelu", x, "x");
    torch_op::check_layout("gelu", y, "y", x, "x");
    torch_op::check_overlap("gelu", y, "y", x, "x");
    torch_op::mark_dirty("gelu", y, "y");
    launch_forward(y, x, version);
}

static void forward_derivative_out(Tensor x, Tensor y, Tensor derivative, int64_t version) {
    torch_op::check_device("gelu", x, "x");
    torch_op::check_layout("gelu", y, "y", x, "x");
    torch_op::check_layout("gelu", derivative, "derivative", x, "x");
    torch_op::check_overlap("gelu", y, "y", x, "x");
    torch_op::check_overlap("gelu", derivative, "derivative", x, "x");
    torch_op::check_overlap("gelu", derivative, "derivative", y, "y", /*other_is_output=*/true);
    torch_op::mark_dirty("gelu", y, "y");
    torch_op::mark_dirty("gelu", derivative, "derivative");
    launch_forward_derivative(y, derivative, x, version);
}

static void backward_out(Tensor grad, Tensor x, Tensor grad_x, int64_t version) {
    torch_op::check_device("gelu backward", x, "x");
    torch_op::check_layout("gelu backward", grad, "grad", x, "x");
    torch_op::check_layout("gelu backward", grad_x, "grad_x", x, "x");
    torch_op::check_overlap("gelu backward", grad_x, "grad_x", x, "x");
    torch_op::check_overlap("gelu backward", grad_x, "grad_x", grad, "grad");
    torch_op::mark_dirty("gelu backward", grad_x, "grad_x");
    launch_backward(grad_x, grad, x, version);
}

static void backward_saved_out(Tensor grad, Tensor derivative, Tensor grad_x, int64_t version) {
    torch_op::check_device("gelu backward", derivative, "derivative");
    torch_op::check_layout("gelu backward", grad, "grad", derivative, "derivative");
    torch_op::check_layout("gelu backward", grad_x, "grad_x", derivative, "derivative");
    torch_op::check_overlap("gelu backward", grad_x, "grad_x", derivative, "derivative");
    torch_op::check_overlap("gelu backward", grad_x, "grad_x", grad, "grad");
    torch_op::mark_dirty("gelu backward", grad_x, "grad_x");
    launch_backward_saved(grad_x, grad, derivative, version);
}

// ---- into new outputs, from inputs of any layout; the result has the layout of torch.empty_like(x) ----

static Tensor forward(Tensor x, int64_t version) {
    torch_op::check_device("gelu", x, "x");
    const Tensor dense = torch_op::dense(x);
    const Tensor y = torch::stable::empty_like(dense);
    launch_forward(y, dense, version);
    return y;
}

static std::tuple<Tensor, Tensor> forward_derivative(Tensor x, int64_t version) {
    torch_op::check_device("gelu", x, "x");
    const Tensor dense = torch_op::dense(x);
    const Tensor y = torch::stable::empty_like(dense);
    const Tensor derivative = torch::stable::empty_like(dense);
    launch_forward_derivative(y, derivative, dense, version);
    return {y, derivative};
}

static Tensor backward(Tensor grad, Tensor x, int64_t version) {
    torch_op::check_device("gelu backward", x, "x");
    torch_op::check_matches("gelu backward", grad, "grad", x, "x");
    const Tensor dense = torch_op::dense(x);
    const Tensor grad_x = torch::stable::empty_like(dense);
    launch_backward(grad_x, torch_op::in_order_of(dense, grad), dense, version);
    return grad_x;
}

static Tensor backward_saved(Tensor grad, Tensor derivative, int64_t version) {
    torch_op::check_device("gelu backward", derivative, "derivative");
    torch_op::check_matches("gelu backward", grad, "grad", derivative, "derivative");
    const Tensor dense = torch_op::dense(derivative);
    const Tensor grad_x = torch::stable::empty_like(dense);
    launch_backward_saved(grad_x, torch_op::in_order_of(dense, grad), dense, version);
    return grad_x;
}

OP_LIBRARY(NAMESPACE, m) {
    m.def("forward(Tensor x, int version) -> Tensor");
    m.def("forward_derivative(Tensor x, int version) -> (Tensor, Tensor)");
    m.def("backward(Tensor grad, Tensor x, int version) -> Tensor");
    m.def("backward_saved(Tensor grad, Tensor derivative, int version) -> Tensor");
    m.def("forward_out(Tensor x, Tensor(a!) y, int version) -> ()");
    m.def("forward_derivative_out(Tensor x, Tensor(a!) y, Tensor(b!) derivative, int version) -> ()");
    m.def("backward_out(Tensor grad, Tensor x, Tensor(a!) grad_x, int version) -> ()");
    m.def("backward_saved_out(Tensor grad, Tensor derivative, Tensor(a!) grad_x, int version) -> ()");
}

// For every device, so that a tensor on the wrong one gets our message and not the dispatcher's.
OP_LIBRARY_IMPL(NAMESPACE, CompositeExplicitAutograd, m) {
    m.impl("forward", OP_BOX(forward));
    m.impl("forward_derivative", OP_BOX(forward_derivative));
    m.impl("backward", OP_BOX(backward));
    m.impl("backward_saved", OP_BOX(backward_saved));
    m.impl("forward_out", OP_BOX(forward_out));
    m.impl("forward_derivative_out", OP_BOX(forward_derivative_out));
    m.impl("backward_out", OP_BOX(backward_out));
    m.impl("backward_saved_out", OP_BOX(backward_saved_out));
}
