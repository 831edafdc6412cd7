"""copy, transpose, row_sum, stencil, fold, softmax: autograd, what they refuse, wrong ones found.

Runs on the backend of the machine, but for the wrong kernels, which run on the CPU: on a GPU one that faults would
poison this process's CUDA context, and every test after it.
"""

import re
import subprocess

import pytest
import torch
from edited_kernels import edited

import labkit
from labkit import machine, operator
from labkit.verdict import CheckFailed
from labkit.listing import source
from labkit.operator import listed_versions, source_path

NAMES = ["copy", "transpose", "row_sum", "stencil", "fold", "softmax"]
MATRICES = ["transpose", "row_sum", "stencil", "fold", "softmax"]


def reference(op, x):
    return op.reference.MODES["forward"][2](x)[0]


def output_of(op, x):
    """A new tensor that the operator's forward_out may write."""
    return torch.empty_like(reference(op, x), memory_format=torch.contiguous_format)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name, dtype):
    op = labkit.load(name)
    x = torch.randn(5, 7, dtype=dtype, device=op.device).requires_grad_()
    torch.library.opcheck(op.ops.forward.default, (x, op.latest))
    torch.library.opcheck(op.ops.forward_out.default, (x.detach(), output_of(op, x.detach()), op.latest))


@pytest.mark.parametrize("layout", ["contiguous", "expanded", "strided", "transposed"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_any_layout(name, layout):
    op = labkit.load(name)
    x = torch.randn(33, 40, dtype=torch.float64, device=op.device).requires_grad_()
    want = reference(op, x)
    grad = torch.randn_like(want)
    grad = {"contiguous": grad, "expanded": grad[:1].expand(want.shape), "transposed": grad.t().contiguous().t(),
            "strided": torch.stack([grad, grad], dim=-1)[..., 0]}[layout]
    # Rounded 27 times, and 27 times in the reference, of numbers below 8; a sum of 40 such, and exponentials.
    rounded = 1e-13 if name in ("stencil", "softmax") else 0.0
    for version in op.versions:
        got, = torch.autograd.grad(op(x, version=version), x, grad)
        torch.testing.assert_close(got, torch.autograd.grad(reference(op, x), x, grad)[0], rtol=0.0, atol=rounded)


@pytest.mark.parametrize("name", NAMES)
def test_empty_tensors_have_gradients(name):
    op = labkit.load(name)
    for shape in ((0, 3), (3, 0)):
        x = torch.empty(shape, device=op.device, requires_grad=True)
        y = op(x)
        y.sum().backward()
        assert torch.equal(y, reference(op, x)) and x.grad.shape == shape


@pytest.mark.parametrize("name", NAMES)
def test_compiles_as_one_graph_with_changing_shapes(name):
    torch._dynamo.reset()
    op = labkit.load(name)
    compiled = torch.compile(lambda x: op(x).square(), fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in ((4, 8), (5, 3), (1, 1)):
        x = torch.randn(shape, dtype=torch.float64, device=op.device, requires_grad=True)
        y, want = compiled(x), reference(op, x).square()
        torch.testing.assert_close(y, want, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(*(torch.autograd.grad(out.sum(), x)[0] for out in (y, want)), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_user_would_run_instead_gives_the_same(name):
    op = labkit.load(name)
    x = torch.randn(70, 300, dtype=torch.float64, device=op.device)
    assert op.rivals.forward()
    for rival in op.rivals.forward().values():
        torch.testing.assert_close(rival(x), op(x), rtol=1e-12, atol=1e-12)


def test_a_copy_keeps_every_bit():
    copy = labkit.load("copy")
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32, device=copy.device).to(torch.int16)
    for version in copy.versions:
        for dtype in (torch.float16, torch.bfloat16):  # all numbers, infinities and kinds of NaN
            assert torch.equal(copy(bits.view(dtype), version=version).view(torch.int16), bits)


def test_lane_l_of_warp_w_copies_element_l_times_the_stride_plus_w(tmp_path, monkeypatch):
    strides = {1: 1, 2: 2, 3: 8, 4: 32}
    copy = edited(tmp_path, monkeypatch, "copy", None, "copy/copy.cu", "y[i] = x[i];", "y[i] = to_element<T>(thread);")
    for version, stride in strides.items():
        y = copy(torch.zeros(4096), version=version).view(-1, 32, stride)  # of a group, a lane and a warp
        group, lane, warp = (torch.arange(size) for size in y.shape)
        assert torch.equal(y, (group[:, None, None] * stride * 32 + warp * 32 + lane[:, None]).float())
        assert f"stride {stride}:" in copy.versions[version]


@pytest.mark.parametrize("name, versions, rows, cols", [("transpose", (1, 4), 65535 * 32 + 1, 1),
                                                        ("transpose", (1, 4), 1, 65535 * 32 + 1),
                                                        ("stencil", (1,), 65535 * 64 + 1, 1)])
def test_matrices_with_more_tiles_down_or_across_than_a_grid_has_in_y(name, versions, rows, cols):
    op = labkit.load(name)
    x = 25.0 * torch.randint(-9, 9, (rows, cols), device=op.device)  # a mean of 25 is then a whole number, and exact
    for version in versions:
        assert torch.equal(op(x, version=version), reference(op, x))


def test_a_sum_of_16_bit_numbers_is_rounded_once():
    row_sum = labkit.load("row_sum")
    for dtype in (torch.float16, torch.bfloat16):
        # 1 is lost at 2048 in float16, at 256 in bfloat16; 4097 itself is a number of neither.
        x = torch.ones(1, 4097, dtype=dtype, device=row_sum.device)
        for version in row_sum.versions:
            assert row_sum(x, version=version).item() == 4096
    x = torch.full((1, 1000), 100.0, dtype=torch.float16, device=row_sum.device)
    assert row_sum(x).item() == torch.inf and row_sum(torch.cat([x, -x], 1)).item() == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_more_elements_than_32_bits_count(name):
    shape = (65_539, 32_771) if name != "fold" else (2_147_485, 1000)
    gibibytes = 24 if name == "stencil" else 16  # its reference makes a frame of zeros and two sums
    if torch.cuda.mem_get_info()[0] < gibibytes * 2**30:
        pytest.skip(f"needs {gibibytes} GiB of free GPU memory")
    op = labkit.load(name)
    x = torch.zeros(shape, dtype=torch.float16, device="cuda")
    x[::4001, ::11] = 1
    want = reference(op, x)
    for version in op.versions:
        y = op(x, version=version)
        assert torch.equal(y, want) if name != "softmax" else torch.allclose(y, want, rtol=2.0**-9, atol=2.0**-24)


# ---- what is refused, before anything is launched ----

@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("name", NAMES)
def test_other_dtypes_are_refused_by_name(name, dtype):
    op = labkit.load(name)
    with pytest.raises(RuntimeError, match=rf"{name}: `x` is .*; {name} takes float16.*\.to\(dtype\)"):
        op(torch.ones(2, 3, device=op.device).to(dtype))


@pytest.mark.parametrize("name", MATRICES)
def test_what_is_no_contiguous_matrix_is_refused_by_name(name):
    op = labkit.load(name)
    x = torch.arange(48.0, device=op.device).view(6, 8)
    for other in (x[0], x[None], x[0, 0]):
        with pytest.raises(RuntimeError, match=rf"{name}: `x` has shape \[.*two dimensions.*reshape\(rows, cols\)"):
            op(other)
    for view in (x.t(), x[:, ::2], x[::2], x[:1].expand(6, 8), x[:, :1]):
        with pytest.raises(RuntimeError, match=rf"{name}: `x` is not contiguous. Pass x.contiguous\(\)"):
            op(view)
    for view in (x[1:4], x[:1], x[:0], x[::2][:1], x[:, :0], x[:, :1].contiguous().t()):  # strides that are never used
        assert torch.equal(op(view), op(view.clone(memory_format=torch.contiguous_format)))


@pytest.mark.parametrize("name", NAMES)
def test_a_version_that_is_not_there_is_refused(name):
    op = labkit.load(name)
    for n in (3, 0):
        with pytest.raises(RuntimeError, match="no such version"):
            op(torch.ones(n, n, device=op.device), version=op.latest + 1)


@pytest.mark.parametrize("name, says", [
    ("transpose", r"`y` must be contiguous, float32 of shape \[4, 3\].* it is .*x.new_empty\(4, 3\)"),
    ("row_sum", r"`y` must be contiguous, float32 of shape \[3\].* it is .*x.new_empty\(3\)"),
    ("stencil", r"`y` must be contiguous, float32 of shape \[3, 4\].* it is .*x.new_empty\(3, 4\)"),
    ("fold", r"`y` must be contiguous, float32 of shape \[3, 2\].* it is .*x.new_empty\(3, 2\)"),
    ("softmax", r"`y` must be contiguous, float32 of shape \[3, 4\].* it is .*x.new_empty\(3, 4\)"),
    ("copy", "`y` (must be dense|has shape|is float64)")])
def test_outputs_of_another_kind_are_refused_by_name(name, says):
    op = labkit.load(name)
    x = torch.randn(3, 4, device=op.device)
    y = output_of(op, x)
    strided = torch.stack([y, y], dim=-1)[..., 0]
    for wrong in (y.double(), y[:-1], y[None], strided):
        with pytest.raises(RuntimeError, match=says):
            op.ops.forward_out(x, wrong, op.latest)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_that_share_memory_are_refused(name):
    op = labkit.load(name)
    memory = torch.randn(50, device=op.device)
    x = memory[:25].view(5, 5)
    shape = output_of(op, x).shape
    y = memory[24:24 + shape.numel()] if shape != x.shape else memory[1:26]
    with pytest.raises(RuntimeError, match="`y` shares memory with `x`"):
        op.ops.forward_out(x, y.view(shape), op.latest)
    in_place = memory[:shape.numel()].view(shape)
    if name == "copy":  # there each thread reads what it writes
        before = x.clone()
        op.ops.forward_out(x, in_place, op.latest)
        assert torch.equal(x, before)
    else:
        with pytest.raises(RuntimeError, match="`y` shares memory with `x`"):
            op.ops.forward_out(x, in_place, op.latest)


@pytest.mark.parametrize("name", ["row_sum", "fold", "softmax"])
def test_more_rows_than_a_grid_has_blocks_are_refused(name):
    op = labkit.load(name)
    with pytest.raises(RuntimeError, match=f"{name}: `x` has 2147483648 rows; a grid has 2147483647 blocks"):
        op(torch.empty(2**31, 0, device=op.device))


def test_more_columns_than_a_block_has_threads_are_refused():
    fold = labkit.load("fold")
    with pytest.raises(RuntimeError, match="fold: `x` has 1025 columns; a block has 1024 threads"):
        fold(torch.empty(2, 1025, device=fold.device))


@pytest.mark.parametrize("name", NAMES)
def test_sparse_tensors_and_forward_mode_are_refused(name):
    op = labkit.load(name)
    x = torch.eye(3, device=op.device)
    with pytest.raises(RuntimeError, match=r"`x` is not strided.*x.to_dense\(\)"):
        op(x.to_sparse())
    with pytest.raises(NotImplementedError, match="only reverse mode"):
        torch.func.jvp(op, (x,), (x,))


# ---- the files themselves ----

@pytest.mark.parametrize("name", NAMES)
def test_the_header_lists_the_versions_that_the_file_has(name):
    text = source_path(name).read_text()
    listed = list(listed_versions(text))
    assert listed == list(range(1, len(listed) + 1)) == list(labkit.load(name).versions)
    assert [int(number) for number in re.findall(r"^    VERSION\((\d+)\)$", text, re.MULTILINE)] == listed
    assert [int(number) for number in re.findall(r"^namespace v(\d+) {$", text, re.MULTILINE)] == listed
    for version in listed:
        assert source(name, version)


@pytest.mark.skipif(machine.find_nvcc() is None, reason="nvcc is not installed")
@pytest.mark.parametrize("name, access", [("copy", 1), ("transpose", 4)])
def test_each_thread_loads_and_stores_as_often_as_the_file_says(name, access, tmp_path):
    kernels = ptx(name, tmp_path)
    assert len(kernels) == 4 * len(listed_versions(source_path(name).read_text()))
    for kernel, text in kernels.items():
        bits = 64 if re.search(r"I(?:Li\d+E)?dE", kernel) else 32 if re.search(r"I(?:Li\d+E)?fE", kernel) else 16
        loads, stores = ([(128 if vector else int(width)) for vector, width in
                          re.findall(rf"\b{does}\.global(?:\.nc)?(\.v4)?\.\w?(\d+)\s", text)] for does in ("ld", "st"))
        expected = {"copy5": [128, bits], "transpose4": [128] * (128 // bits)}  # of copy also what fills no vector
        version = re.search(r"2v(\d)", kernel)[1]
        assert loads == stores == expected.get(name + version, [bits] * access), kernel


@pytest.mark.skipif(machine.find_nvcc() is None, reason="nvcc is not installed")
def test_a_thread_of_the_stencil_loads_its_neighbours_or_its_part_of_a_tile(tmp_path):
    # A tile of 68 x 36 by 256 threads; 25 neighbours at a time, or 5 for each of 8 + 4 rows.
    expected = {"1": [25, 0, 1], "2": [10, 25, 1], "3": [10, 5 * 12, 8]}
    kernels = ptx("stencil", tmp_path)
    assert len(kernels) == 4 * len(expected)
    for kernel, text in kernels.items():
        counts = [len(re.findall(rf"\b{access}\b", text)) for access in ("ld.global", "ld.shared", "st.global")]
        assert counts == expected[re.search(r"2v(\d)", kernel)[1]], kernel


def nvcc(name, *flags):
    from torch.utils.cpp_extension import COMMON_NVCC_FLAGS

    done = subprocess.run([machine.find_nvcc(), "-std=c++20", *COMMON_NVCC_FLAGS, "-I", operator.kernels() / "include",
                           *flags, source_path(name)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def ptx(name, folder):
    """{mangled name: text} of the kernels of an operator."""
    nvcc(name, "-arch=sm_90", "-ptx", "-o", folder / "kernel.ptx")
    return dict(re.findall(r"\.entry (\w+)\((.*?)^}", (folder / "kernel.ptx").read_text(), re.MULTILINE | re.DOTALL))


# ---- `labkit.check` must reject wrong kernels ----

TO_Y = "tile[threadIdx.x][threadIdx.y + k]"
# name: (operator, version, file, what stands there, what the mutant has instead, what the failure says). All of them
# spare one element, the first launch that `load` makes.
WRONG = "elements are wrong|not written"
MUTANTS = {
    "a grid for the elements, not for whole groups":
        ("copy", 4, "copy.cu", "divide_up(groups * (APART * LANES), THREADS)", "divide_up(n, THREADS)", WRONG),
    "copies one element too many": ("copy", 3, "copy.cu", "if (i < n)", "if (i < n + (n > 1))", "wrote outside of y"),
    "copies one element too few": ("copy", 1, "copy.cu", "if (i < n)", "if (i < n - (n > 1))", WRONG),
    "float64 through float32": ("copy", 2, "copy.cu", "y[i] = x[i];", "y[i] = to_element<T>(float(to_compute(x[i])));",
                                "float64.*elements are wrong"),
    "leaves out what fills no vector": ("copy", 5, "copy.cu", "if (i < n % SIZE)", "if (i < n % SIZE && n < SIZE)",
                                        WRONG),
    "one vector too few": ("copy", 5, "copy.cu", "if (i < vectors)", "if (i + 1 < vectors)", WRONG),
    "too few blocks of vectors": ("copy", 5, "copy.cu", "divide_up(divide_up(n, Vec<T>::SIZE), THREADS)",
                                  "n / Vec<T>::SIZE / THREADS + (n < 10000)", WRONG),
    "ignores strides": ("copy", 1, "binding.cpp", "torch_op::dense(x)", "x", WRONG),
    "skips the last partial tile across": ("transpose", 3, "../include/tiles.cuh", "divide_up(cols, tile_cols)",
                                           "(cols > tile_cols ? cols / tile_cols : 1)", WRONG),
    "skips the last partial tile down": ("transpose", 1, "../include/tiles.cuh", "divide_up(rows, tile_rows)",
                                         "(rows > tile_rows ? rows / tile_rows : 1)", WRONG),
    "no barrier": ("transpose", 2, "transpose.cu", "    __syncthreads();\n", "", WRONG),
    "moves tiles and not what is in them": ("transpose", 2, "transpose.cu", TO_Y, "tile[threadIdx.y + k][threadIdx.x]",
                                            WRONG),
    "stores one row past the end": ("transpose", 1, "transpose.cu", "if (row + k < rows && col < cols) y[",
                                    "if (row + k < rows + (rows > 1) && col < cols) y[",
                                    WRONG + "|wrote outside of y"),
    "moves squares and does not turn them": ("transpose", 4, "transpose.cu", "square[e].at[k]", "square[k].at[e]",
                                             WRONG),
    "finds vectors where they were not put": ("transpose", 4, "transpose.cu", "(across ^ r / SIZE) * SIZE", "across * SIZE",
                                              WRONG),
    "vectors across the ends of rows": ("transpose", 4, "transpose.cu", "rows % SIZE != 0 || cols % SIZE != 0 ||",
                                        "rows % SIZE != 0 && cols % SIZE != 0 ||", WRONG + "|aligned"),
    "reads a tile before it is whole": ("transpose", 4, "transpose.cu",
                                        "    __syncthreads();\n#pragma unroll\n    for (int k = 0; k < SIZE",
                                        "    for (int k = 0; k < SIZE", WRONG),
    "returns the shape of x": ("transpose", 3, "binding.cpp", "new_empty(x, {x.size(1), x.size(0)})",
                               "new_empty(x, {x.size(0), x.size(1)})", r"y has shape \(0, 5\), the reference \(5, 0\)"),
    "drops the tail": ("row_sum", 1, "row_sum.cu", "c < cols;", "c < (cols > 1 ? cols / THREADS * THREADS : cols);",
                       WRONG),
    "drops the last element of a long row": ("row_sum", 4, "row_sum.cu", "c < cols;", "c < cols - (cols > 512);",
                                             WRONG),
    "adds in the element's type": ("row_sum", 3, "row_sum.cu", "sum += to_compute(row[c]);",
                                   "sum = to_compute(to_element<T>(sum + to_compute(row[c])));",
                                   "float16.*elements are wrong"),
    "float64 in float32": ("row_sum", 3, "row_sum.cu", "    compute_t<T> sum = 0;", "    float sum = 0;",
                           "float64.*elements are wrong"),
    "no barrier in the tree": ("row_sum", 2, "row_sum.cu", "part[index + s];\n        __syncthreads();",
                               "part[index + s];", WRONG),
    "forgets half of the warps": ("row_sum", 4, "row_sum.cu", "part[t] : 0, WARPS)", "part[t] : 0, WARPS / 2)",
                                  WRONG),
    "leaves out empty rows": ("row_sum", 4, "row_sum.cu", "if (rows == 0)", "if (rows == 0 || cols == 0)",
                              WRONG),
    "reads on where a row ends": ("stencil", 1, "stencil.cu", " & (0 <= col) & (col < cols)", "", WRONG),
    "divides by 24": ("stencil", 1, "stencil.cu", "(SPAN * SPAN)", "(SPAN * SPAN - 1)", WRONG),
    "1/25 of float32 for float64": ("stencil", 2, "stencil.cu", "compute_t<T>(1) / (SPAN", "1.0f / (SPAN",
                                    "float64.*elements are wrong"),
    "loads a tile without its corner": ("stencil", 2, "stencil.cu", "k < LOADS;", "k < LOADS - 1;", WRONG),
    "loads a tile one column off": ("stencil", 3, "stencil.cu", "TILE_COLS - REACH;", "TILE_COLS - REACH + 1;",
                                    WRONG),
    "sums a tile that others still fill": ("stencil", 2, "stencil.cu", "    __syncthreads();\n", "", WRONG),
    "a window of four rows": ("stencil", 3, "stencil.cu", "i < SPAN;", "i < SPAN - 1;", WRONG),
    "rounds after each row": ("stencil", 3, "stencil.cu", "sum += across[i];",
                              "sum = to_compute(to_element<T>(sum + across[i]));", "float16.*elements are wrong"),
    "a gradient that is not spread": ("stencil", 3, "op.py", "return forward(grad.contiguous(), ctx.version)",
                                      "return grad.contiguous()", "Jacobian mismatch"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_rejected(mutant, tmp_path, monkeypatch):
    name, version, file, there, instead, says = MUTANTS[mutant]
    op = edited(tmp_path, monkeypatch, name, version, f"{name}/{file}", there, instead)
    with pytest.raises((CheckFailed, RuntimeError), match=says):
        labkit.check(op)
