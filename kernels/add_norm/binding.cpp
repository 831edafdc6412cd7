// torch.ops.NAMESPACE.*: checks, allocation, launch. Gradients and shapes under torch.compile are op.py's.
//
// NAMESPACE is a macro, a name for this very build, so that an edited kernel can be loaded beside the old one.
#include "add_norm.h"
#include "torch_op.h"

using torch::stable::Tensor;
using torch_op::Launch;
using torch_op::ScalarType;

static const char* const FORWARD = "add_norm";
static const char* const BACKWARD = "add_norm backward";

// What 16-bit elements are computed in.
static ScalarType wide(Element element) { return element == Element::float64 ? ScalarType::Double : ScalarType::Float; }
static const char* name_of(ScalarType type) { return type == ScalarType::Double ? "float64" : "float32"; }

static Element check_main(const char* op, const Tensor& t, const char* name) {
    const Element element = torch_op::check_matrix(op, t, name);
    if (t.size(0) > 2147483647) {
        torch_op::fail({op, ": `", name, "` has ", std::to_string(t.size(0)),
                        " rows; a grid has 2147483647 blocks at most, one a row. Split ", name, " with .chunk."});
    }
    return element;
}

// Goes with the matrix `main` and has its shape.
static void check_like(const char* op, const Tensor& t, const char* name, const Tensor& main, const char* main_name) {
    torch_op::check_matches(op, t, name, main, main_name);
    torch_op::check_matrix(op, t, name);
}

// A contiguous vector of `type` with `size` elements, on the device of `main`.
static void check_vector(const char* op, const Tensor& t, const char* name, int64_t size, ScalarType type, const Tensor& main,
                         const char* main_name) {
    torch_op::check_device(op, t, name);
    const std::string shape = "[" + std::to_string(size) + "]";
    if (t.get_device_index() != main.get_device_index() || t.scalar_type() != type || torch_op::shape_of(t) != shape ||
        !torch_op::is_contiguous(t)) {
        const bool as_main = type == main.scalar_type();
        torch_op::fail({op, ": `", name, "` must be contiguous, ", as_main ? torch_op::dtype_of(main) : name_of(type),
                        " of shape ", shape, ", on the device of `", main_name, "`; it is ", torch_op::dtype_of(t),
                        " of shape ", torch_op::shape_of(t), "."});
    }
}

using Named = std::pair<const Tensor&, const char*>;

// No output shares memory with one of the others.
static void check_apart(const char* op, std::initializer_list<Named> outputs, std::initializer_list<Named> others) {
    for (const auto& [out, name] : outputs) {
        for (const auto& [other, other_name] : others) {
            torch_op::check_overlap(op, out, name, other, other_name, /*other_is_output=*/true);
        }
    }
}

static void mark_dirty(const char* op, std::initializer_list<Named> outputs) {
    for (const auto& [out, name] : outputs) torch_op::mark_dirty(op, out, name);
}

static Element check_forward(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias) {
    const Element element = check_main(FORWARD, x, "x");
    check_like(FORWARD, residual, "residual", x, "x");
    check_vector(FORWARD, weight, "weight", x.size(1), x.scalar_type(), x, "x");
    check_vector(FORWARD, bias, "bias", x.size(1), x.scalar_type(), x, "x");
    return element;
}

static Element check_backward(const Tensor& grad_y, const Tensor& grad_h, const Tensor& weight, const Tensor& mean,
                              const Tensor& rstd, const Tensor& h) {
    const Element element = check_main(BACKWARD, h, "h");
    check_like(BACKWARD, grad_y, "grad_y", h, "h");
    check_like(BACKWARD, grad_h, "grad_h", h, "h");
    check_vector(BACKWARD, weight, "weight", h.size(1), h.scalar_type(), h, "h");
    check_vector(BACKWARD, mean, "mean", h.size(0), wide(element), h, "h");
    check_vector(BACKWARD, rstd, "rstd", h.size(0), wide(element), h, "h");
    return element;
}

static void launch_forward(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias, const Tensor& y,
                           const Tensor& h, const Tensor& mean, const Tensor& rstd, Element element, int64_t version) {
    const Launch launch(x);
    const AddNorm arrays{x.data_ptr(), residual.data_ptr(), weight.data_ptr(), bias.data_ptr(),
                         y.data_ptr(), h.data_ptr(), mean.data_ptr(), rstd.data_ptr()};
    launch.check(FORWARD, version, add_norm_forward(element, version, arrays, x.size(0), x.size(1), launch.stream()));
}

static void launch_backward(const Tensor& grad_y, const Tensor& grad_h, const Tensor& weight, const Tensor& mean,
                            const Tensor& rstd, const Tensor& h, const Tensor& grad_x, const Tensor& grad_weight,
                            const Tensor& grad_bias, Element element, int64_t version) {
    const int64_t rows = h.size(0), cols = h.size(1);
    const Tensor parts = torch::stable::new_empty(h, {2, add_norm_parts(rows, cols), cols}, wide(element));
    const Launch launch(h);
    const AddNormGradient arrays{grad_y.data_ptr(), grad_h.data_ptr(), h.data_ptr(), weight.data_ptr(),
                                 mean.data_ptr(), rstd.data_ptr(), grad_x.data_ptr(), grad_weight.data_ptr(),
                                 grad_bias.data_ptr(), parts.data_ptr()};
    launch.check(BACKWARD, version, add_norm_backward(element, version, arrays, rows, cols, launch.stream()));
}

// ---- into outputs that the caller made ----

static void forward_out(Tensor x, Tensor residual, Tensor weight, Tensor bias, Tensor y, Tensor h, Tensor mean, Tensor rstd,
                        int64_t version) {
    const Element element = check_forward(x, residual, weight, bias);
    const int64_t rows = x.size(0), cols = x.size(1);
    torch_op::check_result(FORWARD, y, "y", x, "x", {rows, cols});
    torch_op::check_result(FORWARD, h, "h", x, "x", {rows, cols});
    check_vector(FORWARD, mean, "mean", rows, wide(element), x, "x");
    check_vector(FORWARD, rstd, "rstd", rows, wide(element), x, "x");
    check_apart(FORWARD, {{y, "y"}, {h, "h"}}, {{residual, "residual"}, {weight, "weight"}, {bias, "bias"}});
    check_apart(FORWARD, {{mean, "mean"}, {rstd, "rstd"}},
                {{x, "x"}, {residual, "residual"}, {weight, "weight"}, {bias, "bias"}, {y, "y"}, {h, "h"}});
    torch_op::check_overlap(FORWARD, h, "h", y, "y", /*other_is_output=*/true);
    torch_op::check_overlap(FORWARD, rstd, "rstd", mean, "mean", /*other_is_output=*/true);
    mark_dirty(FORWARD, {{y, "y"}, {h, "h"}, {mean, "mean"}, {rstd, "rstd"}});
    launch_forward(x, residual, weight, bias, y, h, mean, rstd, element, version);
}

static void backward_out(Tensor grad_y, Tensor grad_h, Tensor weight, Tensor mean, Tensor rstd, Tensor h, Tensor grad_x,
                         Tensor grad_weight, Tensor grad_bias, int64_t version) {
    const Element element = check_backward(grad_y, grad_h, weight, mean, rstd, h);
    torch_op::check_result(BACKWARD, grad_x, "grad_x", h, "h", {h.size(0), h.size(1)});
    check_vector(BACKWARD, grad_weight, "grad_weight", h.size(1), h.scalar_type(), h, "h");
    check_vector(BACKWARD, grad_bias, "grad_bias", h.size(1), h.scalar_type(), h, "h");
    check_apart(BACKWARD, {{grad_x, "grad_x"}, {grad_weight, "grad_weight"}, {grad_bias, "grad_bias"}},
                {{grad_y, "grad_y"}, {grad_h, "grad_h"}, {h, "h"}, {weight, "weight"}, {mean, "mean"}, {rstd, "rstd"}});
    check_apart(BACKWARD, {{grad_weight, "grad_weight"}, {grad_bias, "grad_bias"}}, {{grad_x, "grad_x"}});
    torch_op::check_overlap(BACKWARD, grad_bias, "grad_bias", grad_weight, "grad_weight", /*other_is_output=*/true);
    mark_dirty(BACKWARD, {{grad_x, "grad_x"}, {grad_weight, "grad_weight"}, {grad_bias, "grad_bias"}});
    launch_backward(grad_y, grad_h, weight, mean, rstd, h, grad_x, grad_weight, grad_bias, element, version);
}

// ---- into new outputs ----

static std::tuple<Tensor, Tensor, Tensor, Tensor> forward(Tensor x, Tensor residual, Tensor weight, Tensor bias,
                                                          int64_t version) {
    const Element element = check_forward(x, residual, weight, bias);
    const Tensor y = torch::stable::new_empty(x, {x.size(0), x.size(1)});
    const Tensor h = torch::stable::new_empty(x, {x.size(0), x.size(1)});
    const Tensor mean = torch::stable::new_empty(x, {x.size(0)}, wide(element));
    const Tensor rstd = torch::stable::new_empty(x, {x.size(0)}, wide(element));
    launch_forward(x, residual, weight, bias, y, h, mean, rstd, element, version);
    return {y, h, mean, rstd};
}

static std::tuple<Tensor, Tensor, Tensor> backward(Tensor grad_y, Tensor grad_h, Tensor weight, Tensor mean, Tensor rstd,
                                                   Tensor h, int64_t version) {
    const Element element = check_backward(grad_y, grad_h, weight, mean, rstd, h);
    const Tensor grad_x = torch::stable::new_empty(h, {h.size(0), h.size(1)});
    const Tensor grad_weight = torch::stable::new_empty(h, {h.size(1)}), grad_bias = torch::stable::new_empty(h, {h.size(1)});
    launch_backward(grad_y, grad_h, weight, mean, rstd, h, grad_x, grad_weight, grad_bias, element, version);
    return {grad_x, grad_weight, grad_bias};
}

OP_LIBRARY(NAMESPACE, m) {
    m.def("forward(Tensor x, Tensor residual, Tensor weight, Tensor bias, int version) -> (Tensor, Tensor, Tensor, Tensor)");
    m.def("backward(Tensor grad_y, Tensor grad_h, Tensor weight, Tensor mean, Tensor rstd, Tensor h, int version) -> "
          "(Tensor, Tensor, Tensor)");
    m.def("forward_out(Tensor x, Tensor residual, Tensor weight, Tensor bias, Tensor(a!) y, Tensor(b!) h, Tensor(c!) mean, "
          "Tensor(d!) rstd, int version) -> ()");
    m.def("backward_out(Tensor grad_y, Tensor grad_h, Tensor weight, Tensor mean, Tensor rstd, Tensor h, Tensor(a!) grad_x, "
          "Tensor(b!) grad_weight, Tensor(c!) grad_bias, int version) -> ()");
}

// For every device, so that a tensor on the wrong one gets our message and not the dispatcher's.
OP_LIBRARY_IMPL(NAMESPACE, CompositeExplicitAutograd, m) {
    m.impl("forward", OP_BOX(forward));
    m.impl("backward", OP_BOX(backward));
    m.impl("forward_out", OP_BOX(forward_out));
    m.impl("backward_out", OP_BOX(backward_out));
}
