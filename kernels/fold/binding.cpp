// torch.ops.NAMESPACE.*: checks, allocation, launch. Gradients and shapes under torch.compile are op.py's.
//
// NAMESPACE is a macro, a name for this very build, so that an edited kernel can be loaded beside the old one.
#include "fold.h"
#include "torch_op.h"

using torch::stable::Tensor;
using torch_op::Launch;

static Element check_input(const Tensor& x) {
    const Element element = torch_op::check_matrix("fold", x, "x");
    if (x.size(1) > MOST_COLS) {
        torch_op::fail({"fold: `x` has ", std::to_string(x.size(1)),
                        " columns; a block has 1024 threads at most, one a column. Split x with .chunk."});
    }
    if (x.size(0) > 2147483647) {
        torch_op::fail({"fold: `x` has ", std::to_string(x.size(0)),
                        " rows; a grid has 2147483647 blocks at most, one a row. Split x with .chunk."});
    }
    return element;
}

static int64_t half_of(const Tensor& x) { return (x.size(1) + 1) / 2; }

static void launch_into(const Tensor& y, const Tensor& x, Element element, int64_t version) {
    const Launch launch(x);
    launch.check("fold", version,
                 fold_forward(element, version, x.data_ptr(), y.data_ptr(), x.size(0), x.size(1), launch.stream()));
}

// Into an output that the caller made.
static void forward_out(Tensor x, Tensor y, int64_t version) {
    const Element element = check_input(x);
    torch_op::check_result("fold", y, "y", x, "x", {x.size(0), half_of(x)});
    torch_op::mark_dirty("fold", y, "y");
    launch_into(y, x, element, version);
}

// Into a new output.
static Tensor forward(Tensor x, int64_t version) {
    const Element element = check_input(x);
    const Tensor y = torch::stable::new_empty(x, {x.size(0), half_of(x)});
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
