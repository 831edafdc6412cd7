// torch.ops.NAMESPACE.*: checks, allocation, launch. Gradients and shapes under torch.compile are op.py's.
//
// NAMESPACE is a macro, a name for this very build, so that an edited kernel can be loaded beside the old one.
#include "softmax.h"
#include "torch_op.h"

using torch::stable::Tensor;
using torch_op::Launch;

static Element check_input(const char* op, const Tensor& x, const char* name) {
    const Element element = torch_op::check_matrix(op, x, name);
    if (x.size(0) > 2147483647) {
        torch_op::fail({op, ": `", name, "` has ", std::to_string(x.size(0)),
                        " rows; a grid has 2147483647 blocks at most, one a row. Split ", name, " with .chunk."});
    }
    return element;
}

static Element check_backward(const Tensor& grad, const Tensor& y) {
    const Element element = check_input("softmax backward", y, "y");
    torch_op::check_matches("softmax backward", grad, "grad", y, "y");
    torch_op::check_matrix("softmax backward", grad, "grad");
    return element;
}

static void launch_forward(const Tensor& y, const Tensor& x, Element element, int64_t version) {
    const Launch launch(x);
    launch.check("softmax", version,
                 softmax_forward(element, version, x.data_ptr(), y.data_ptr(), x.size(0), x.size(1), launch.stream()));
}

static void launch_backward(const Tensor& grad_x, const Tensor& grad, const Tensor& y, Element element, int64_t version) {
    const Launch launch(y);
    launch.check("softmax backward", version,
                 softmax_backward(element, version, grad.data_ptr(), y.data_ptr(), grad_x.data_ptr(), y.size(0), y.size(1),
                                  launch.stream()));
}

// ---- into outputs that the caller made ----

static void forward_out(Tensor x, Tensor y, int64_t version) {
    const Element element = check_input("softmax", x, "x");
    torch_op::check_result("softmax", y, "y", x, "x", {x.size(0), x.size(1)});
    torch_op::mark_dirty("softmax", y, "y");
    launch_forward(y, x, element, version);
}

static void backward_out(Tensor grad, Tensor y, Tensor grad_x, int64_t version) {
    const Element element = check_backward(grad, y);
    torch_op::check_result("softmax backward", grad_x, "grad_x", y, "y", {y.size(0), y.size(1)});
    torch_op::check_overlap("softmax backward", grad_x, "grad_x", grad, "grad", /*other_is_output=*/true);
    torch_op::mark_dirty("softmax backward", grad_x, "grad_x");
    launch_backward(grad_x, grad, y, element, version);
}

// ---- into new outputs ----

static Tensor forward(Tensor x, int64_t version) {
    const Element element = check_input("softmax", x, "x");
    const Tensor y = torch::stable::new_empty(x, {x.size(0), x.size(1)});
    launch_forward(y, x, element, version);
    return y;
}

static Tensor backward(Tensor grad, Tensor y, int64_t version) {
    const Element element = check_backward(grad, y);
    const Tensor grad_x = torch::stable::new_empty(y, {y.size(0), y.size(1)});
    launch_backward(grad_x, grad, y, element, version);
    return grad_x;
}

OP_LIBRARY(NAMESPACE, m) {
    m.def("forward(Tensor x, int version) -> Tensor");
    m.def("backward(Tensor grad, Tensor y, int version) -> Tensor");
    m.def("forward_out(Tensor x, Tensor(a!) y, int version) -> ()");
    m.def("backward_out(Tensor grad, Tensor y, Tensor(a!) grad_x, int version) -> ()");
}

// For every device, so that a tensor on the wrong one gets our message and not the dispatcher's.
OP_LIBRARY_IMPL(NAMESPACE, CompositeExplicitAutograd, m) {
    m.impl("forward", OP_BOX(forward));
    m.impl("backward", OP_BOX(backward));
    m.impl("forward_out", OP_BOX(forward_out));
    m.impl("backward_out", OP_BOX(backward_out));
}
