"""Faults that people ship in custom operators, each as a change of one place in an operator of this book.

`labkit.kills` plants them one by one. The last word of each is the check that has to find it, by its name in
labkit.verdict.CHECKS; others may find it too.
"""

from labkit import Shipped, mutant
from labkit.operator import Operator

_FORWARD = """static Tensor forward(Tensor x, int64_t version) {
    torch_op::check_device("copy", x, "x");
    const Tensor dense = torch_op::dense(x);
    const Tensor y = torch::stable::empty_like(dense);
    launch_into(y, dense, version);
    return y;
}"""
# The same without the checks and copies, which would refuse or repair what these faults do.
_BARE = """static Tensor forward(Tensor x, int64_t version) {{
    const void* in = {source}.data_ptr();
    const Tensor y = torch::stable::empty_like(x);
    const Launch launch(x);
    const Element element = torch_op::element_of("copy", x, "x");
    launch.check("copy", version, copy_forward(element, version, in, y.data_ptr(), x.numel(), launch.stream()));
    return y;
}}"""

SHIPPED = {
    # The kernel
    "writes nothing": Shipped(
        "copy", 1, "if (i < n) y[i] = x[i];", "", "unwritten"),
    "writes zeros": Shipped(
        "copy", 1, "y[i] = x[i];", "y[i] = to_element<T>(compute_t<T>(0));", "values"),
    "does the first half": Shipped(
        "copy", 5, "if (i < vectors)", "if (i < vectors / 2)", "unwritten"),
    "leaves out the tail": Shipped(
        "copy", 5, "if (i < n % SIZE)", "if (i + 1 < n % SIZE)", "unwritten"),
    "writes one past the end": Shipped(
        "copy", 5, "if (i < n % SIZE)", "if (i < n % SIZE + (n > 1))", "outside"),
    "writes to its input": Shipped(
        "copy", 1, "if (i < n) y[i] = x[i];", "if (i < n) y[i] = x[i];\n    if (n > 1 && i == 0) const_cast<T*>(x)[0] = x[1];",
        "inputs"),
    "looks at one pointer's alignment": Shipped(
        "copy", 5, "if (!is_vec_aligned(x) || !is_vec_aligned(y))", "if (!is_vec_aligned(x))", "launch"),
    "two outputs swapped": Shipped(
        "gelu", 7, "eval<T>(in[0], out[0], out[1]);", "eval<T>(in[0], out[1], out[0]);", "values", file="gelu/gelu.cu"),
    # The mathematics
    "erf for tanh": Shipped(
        "gelu", 1, "return tanhf(z);", "return erff(z / 1.1283791671f);", "values", file="gelu/gelu.cu"),
    "a factor of the gradient wrong": Shipped(
        "gelu", 1, "(1 + F(3 * B) * u)", "(1 + F(B) * u)", "values", file="gelu/gelu.cu"),
    "overflows for large inputs": Shipped(
        "gelu", 1, "return tanhf(z);", "const float e = expf(2 * z);\n        return (e - 1) / (e + 1);",
        "special", file="gelu/gelu.cu"),
    "hides NaN": Shipped(
        "gelu", 7, "y = fmaxf(x, -16.0f) * s;", "y = fmaxf(x, -16.0f) * (s == s ? s : 0.0f);", "special"),
    "adds in the element's type": Shipped(
        "row_sum", 3, "part[t] = sum_of_thread(x, cols);", """T sum = to_element<T>(0);
    for (int64_t c = t; c < cols; c += THREADS) sum = to_element<T>(to_compute(sum) + to_compute(x[blockIdx.x * cols + c]));
    part[t] = to_compute(sum);""", "values"),
    # Threads, streams, memory
    "a barrier left out": Shipped(
        "transpose", 3, "    __syncthreads();\n", "", "values"),
    "adds in the order of arrival": Shipped(
        "row_sum", 3, "    part[t] = sum_of_thread(x, cols);\n", """    part[t] = 0;
    __syncthreads();
    atomicAdd(&part[0], sum_of_thread(x, cols));
""", "order"),
    "names no stream": Shipped(
        "copy", 5, "<<<blocks, THREADS, 0, stream>>>", "<<<blocks, THREADS>>>", "stream"),
    "frees its input's copy too early": Shipped(  # the copy of `dense` is gone before y is made
        "gelu", 1, _FORWARD.replace("copy", "gelu").replace("launch_into", "launch_forward"),
        _BARE.format(source="torch_op::dense(x)").replace("copy", "gelu"), "values", file="gelu/binding.cpp"),
    "ignores strides": Shipped(
        "copy", 1, _FORWARD, _BARE.format(source="x"), "values", file="copy/binding.cpp"),
    "returns rows for columns": Shipped(
        "copy", 1, "    const Tensor dense = torch_op::dense(x);\n", """    std::vector<int64_t> sizes;
    for (int64_t d = 0; d < x.dim(); ++d) sizes.push_back(x.size(d));
    const Tensor dense = torch::stable::new_empty(x, sizes);
    TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(dense.get(), x.get(), /*non_blocking=*/false));
""", "layout", file="copy/binding.cpp"),
    "keeps its output for the next call": Shipped(
        "copy", 1, "    const Tensor y = torch::stable::empty_like(dense);\n", """    static Tensor y;
    if (!y.defined() || torch_op::shape_of(y) != torch_op::shape_of(x) || y.scalar_type() != x.scalar_type() ||
        !torch_op::same_order(y, dense)) {
        y = torch::stable::empty_like(dense);
    }
""", "again", file="copy/binding.cpp"),
    "tells autograd of no overwriting": Shipped(
        "copy", 1, '    torch_op::mark_dirty("copy", y, "y");\n', "", "registration", file="copy/binding.cpp"),
    # Python
    "remembers results by address": Shipped(
        "copy", 1, "        return forward(x, version)\n", """        if x.requires_grad:
            return forward(x, version)
        key = x.data_ptr(), x.shape, x.stride(), x.dtype
        if key not in copy.__dict__:
            copy.__dict__[key] = forward(x, version)
        return copy.__dict__[key]
""", "again", file="copy/op.py"),
    "the second gradient lacks a term": Shipped(
        "gelu", 1, "(2 * slope + wide * (slope**2 * (1 - 2 * s) + bend))", "(2 * slope + wide * bend)", "gradient",
        file="gelu/op.py"),
    "promises another layout": Shipped(
        "copy", 1, "register_fake(forward, lambda x, version: torch.empty_like(x))",
        "register_fake(forward, lambda x, version: x.new_empty(x.shape))", "registration", file="copy/op.py"),
}


def planted(what: str, backend: str) -> Operator:
    """The operator with one of SHIPPED in it, built for a backend; only for faults that leave a GPU usable."""
    fault = SHIPPED[what]
    return mutant(fault.operator, fault.version, fault.old, fault.new, backend, file=fault.file)
