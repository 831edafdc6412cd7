// torch.ops.NAMESPACE.*: checks, allocation, launch. Gradients and shapes under torch.compile are op.py's.
//
// NAMESPACE is a macro, a name for this very build, so that an edited kernel can be loaded beside the old one.
#include "copy.h"
#include "torch_op.h"

using torch::stable::Tensor;
using torch_op::Launch;

// x: dense, on a device that this build reaches. y: of its layout.
static void launch_into(const Tensor& y, const Tensor& x, int64_t version) {
    const Element element = torch_op::element_of("copy", x, "x");
    const Launch launch(x);
    launch.check("copy", version, copy_forward(element, version, x.data_ptr(), y.data_ptr(), x.numel(), launch.stream()));
}

// Into an output that the caller made.
static void forward_out(Tensor x, Tensor y, int64_t version) {
    torch_op::check_device("copy", x, "x");
    torch_op::check_layout("copy", y, "y", x, "x");
    torch_op::check_overlap("copy", y, "y", x, "x");
    torch_op::mark_dirty("copy", y, "y");
    launch_into(y, x, version);
}

// Into a new output, from an input of any layout; the result has the layout of torch.empty_like(x).
static Tensor forward(Tensor x, int64_t version) {
    torch_op::check_device("copy", x, "x");
    const Tensor dense = torch_op::dense(x);
    const Tensor y = torch::stable::empty_like(dense);
    launch_into(y, dense, version);
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
