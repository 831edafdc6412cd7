// torch.ops.NAMESPACE.*: checks, allocation, launch. Gradients and shapes under torch.compile are op.py's.
//
// NAMESPACE is a macro, a name for this very build, so that an edited kernel can be loaded beside the old one.
#include "total.h"
#include "torch_op.h"

using torch::stable::Tensor;
using torch_op::Launch;
using torch_op::ScalarType;

static Element check_input(const Tensor& x) {
    const Element element = torch_op::check_matrix("total", x, "x");
    if (element != Element::float32 && element != Element::float64) {
        torch_op::fail({"total: `x` is ", torch_op::dtype_of(x), "; total takes float32 and float64, since it adds up ",
                        "sums, which 16 bits would round. Convert it with .float()."});
    }
    if (x.size(0) > 2147483647) {
        torch_op::fail({"total: `x` has ", std::to_string(x.size(0)),
                        " rows; a grid has 2147483647 blocks at most, one a row. Split x with .chunk."});
    }
    return element;
}

static void launch_into(const Tensor& sums, const Tensor& total, const Tensor& x, Element element, int64_t version) {
    const Tensor tickets = torch::stable::new_zeros(x, {1}, ScalarType::Int);  // of its own: launches may overlap
    const Launch launch(x);
    launch.check("total", version,
                 total_forward(element, version, x.data_ptr(), sums.data_ptr(), total.data_ptr(), tickets.data_ptr(), x.size(0),
                               x.size(1), launch.stream()));
}

// Into outputs that the caller made.
static void forward_out(Tensor x, Tensor sums, Tensor total, int64_t version) {
    const Element element = check_input(x);
    torch_op::check_result("total", sums, "sums", x, "x", {x.size(0)});
    torch_op::check_result("total", total, "total", x, "x", {1});
    torch_op::check_overlap("total", total, "total", sums, "sums", /*other_is_output=*/true);
    torch_op::mark_dirty("total", sums, "sums");
    torch_op::mark_dirty("total", total, "total");
    launch_into(sums, total, x, element, version);
}

// Into new outputs.
static std::tuple<Tensor, Tensor> forward(Tensor x, int64_t version) {
    const Element element = check_input(x);
    const Tensor sums = torch::stable::new_empty(x, {x.size(0)}), total = torch::stable::new_empty(x, {1});
    launch_into(sums, total, x, element, version);
    return {sums, total};
}

OP_LIBRARY(NAMESPACE, m) {
    m.def("forward(Tensor x, int version) -> (Tensor, Tensor)");
    m.def("forward_out(Tensor x, Tensor(a!) sums, Tensor(b!) total, int version) -> ()");
}

// For every device, so that a tensor on the wrong one gets our message and not the dispatcher's.
OP_LIBRARY_IMPL(NAMESPACE, CompositeExplicitAutograd, m) {
    m.impl("forward", OP_BOX(forward));
    m.impl("forward_out", OP_BOX(forward_out));
}
