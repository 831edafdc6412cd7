"""geometry: values in every launch geometry, who takes which element, what is refused, and that wrong kernels are found.

Runs on the backend of the machine, but for the edited kernels, which run on the CPU.
"""

import re
import subprocess

import pytest
import torch
from edited_kernels import edited

import labkit
from labkit import machine
from labkit.verdict import CheckFailed
from labkit.listing import source
from labkit.operator import kernels, listed_versions, source_path

THREADS = (1, 31, 32, 33, 96, 100, 256, 1024)
GUARD = 64


@pytest.fixture(scope="module")
def geometry():
    return labkit.load("geometry")


def shapes(reference):
    """(version, elements a thread, order) of every version."""
    found = {version: (elements, order) for order, versions in reference.VERSIONS.items()
             for elements, version in versions.items()}
    return [(version, *found[version]) for version in sorted(found)]


def expected(x):
    return torch.nn.functional.gelu(x.double(), approximate="tanh")


@pytest.mark.parametrize("threads", THREADS)
def test_values_and_nothing_else_for_sizes_around_a_block(geometry, threads):
    for version, elements, _ in shapes(geometry.reference):
        block = threads * elements
        for n in sorted({0, 1, elements, threads + 1, block - 1, block, block + 1, 3 * block + elements + 1}):
            x = torch.randn(n, dtype=torch.float64, device=geometry.device)
            room = torch.full((n + 2 * GUARD,), torch.nan, dtype=torch.float64, device=geometry.device)
            geometry.ops.sweep_out(x, room[GUARD:n + GUARD], version, threads)
            torch.testing.assert_close(room[GUARD:n + GUARD], expected(x), rtol=1e-13, atol=1e-15)
            assert room[:GUARD].isnan().all() and room[n + GUARD:].isnan().all()
            assert torch.equal(geometry.ops.sweep(x, version, threads), room[GUARD:n + GUARD])


def test_limits_at_infinity_and_nan(geometry):
    for dtype in geometry.reference.DTYPES:
        x = torch.tensor([-torch.inf, torch.inf, torch.nan, -60000.0, 60000.0, -12.0], dtype=dtype, device=geometry.device)
        y = geometry(x)
        assert y.isnan().tolist() == [False, False, True, False, False, False]
        assert y[0] == 0 and y[1] == torch.inf and y[3] == 0 and y[4] == x[4] and abs(y[5].item()) < 1e-30


def test_who_takes_what(tmp_path, monkeypatch):
    """With every thread's number written instead of the value, y is the map of who takes what."""
    mapped = edited(tmp_path, monkeypatch, "geometry", None, "geometry/geometry.cu",
                    "gelu(to_compute(loaded[k]))", "to_compute(loaded[k]) + blockIdx.x * blockDim.x + threadIdx.x")
    for threads in (1, 32, 100):
        for version, elements, order in shapes(mapped.reference):
            y = mapped.ops.sweep(torch.zeros(3 * threads * elements), version, threads).long()
            thread = torch.arange(3 * threads).view(3, threads, 1).expand(3, threads, elements)
            assert torch.equal(y, (thread if order == "consecutive" else thread.transpose(1, 2)).flatten())


def test_the_header_says_how_many_elements_and_in_which_order(geometry):
    text = source_path("geometry").read_text()
    listed = listed_versions(text)
    found = shapes(geometry.reference)
    assert [version for version, _, _ in found] == list(listed) == list(geometry.versions) == list(range(1, len(listed) + 1))
    for version, elements, order in found:
        words = {"consecutive": "consecutive elements", "apart": "a block's width apart"}
        assert version == 1 or listed[version].startswith(f"{elements} ") and words[order] in listed[version]
        assert f"ELEMENTS = {elements};" in source("geometry", version)
        assert version == 1 or f"Order::{order};" in source("geometry", version)
    assert geometry.reference.VERSIONS["consecutive"][geometry.reference.ARTICLE["elements"]] == 3
    assert [int(number) for number in re.findall(r"^    VERSION\((\d+)\)$", text, re.MULTILINE)] == list(listed)


# ---- autograd ----

@pytest.mark.parametrize("dtype, rtol", [(torch.float16, 1e-3), (torch.bfloat16, 8e-3), (torch.float32, 1e-5),
                                         (torch.float64, 1e-12)])
@pytest.mark.parametrize("layout", ["contiguous", "expanded", "transposed"])
def test_gradients_match_autograd_of_the_reference(geometry, dtype, rtol, layout):
    x = torch.linspace(-8, 8, 1320, dtype=dtype, device=geometry.device).view(33, 40).requires_grad_()
    grad = torch.rand(33, 40, device=geometry.device).to(dtype) + 1
    grad = {"contiguous": grad, "expanded": grad[:1].expand(33, 40), "transposed": grad.t().contiguous().t()}[layout]
    exact = x.detach().double().requires_grad_()
    want, = torch.autograd.grad(geometry.reference.gelu(exact), exact, grad.double())
    for version in geometry.versions:
        for y in (geometry.ops.forward(x, version), geometry(x, version=version, threads=96)):
            got, = torch.autograd.grad(y, x, grad)
            assert got.dtype == dtype
            # gelu' is zero near -0.75; there and in the tail the factors' own rounding is left.
            torch.testing.assert_close(got.double(), want, rtol=rtol, atol=2 * torch.finfo(dtype).eps)


def test_gradients_at_infinity_are_the_limits(geometry):
    x = torch.tensor([-torch.inf, torch.inf, -1e30, 1e30], device=geometry.device, requires_grad=True)
    geometry(x).backward(torch.ones_like(x))
    assert x.grad.tolist() == [0, 1, 0, 1]


def test_opcheck_and_one_graph_with_changing_shapes(geometry):
    x = torch.randn(5, 7, dtype=torch.float64, device=geometry.device, requires_grad=True)
    fixed, latest = x.detach(), geometry.latest
    torch.library.opcheck(geometry.ops.forward.default, (x, latest))
    torch.library.opcheck(geometry.ops.sweep.default, (x, latest, 96))
    torch.library.opcheck(geometry.ops.forward_out.default, (fixed, torch.empty_like(fixed), latest))
    torch.library.opcheck(geometry.ops.sweep_out.default, (fixed, torch.empty_like(fixed), latest, 96))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: geometry(x).square(), fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in ((4, 8), (5, 3), (0, 2)):
        x = torch.randn(shape, dtype=torch.float64, device=geometry.device, requires_grad=True)
        y, want = compiled(x), geometry.reference.gelu(x).square()
        torch.testing.assert_close(y, want, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(*(torch.autograd.grad(out.sum(), x)[0] for out in (y, want)), rtol=1e-12, atol=1e-12)


def test_what_a_user_would_run_instead_gives_the_same(geometry):
    x = torch.randn(1000, dtype=torch.float64, device=geometry.device)
    for rival in geometry.rivals.forward().values():
        torch.testing.assert_close(rival(x), geometry(x), rtol=1e-12, atol=1e-12)


# ---- what is refused, before anything is launched ----

@pytest.mark.parametrize("threads", [0, -1, 1025, 2**32 + 32])
def test_other_numbers_of_threads_are_refused_by_name(geometry, threads):
    x = torch.zeros(3, device=geometry.device)
    for call in (geometry.ops.sweep, geometry.ops.occupancy):
        with pytest.raises(RuntimeError, match=f"geometry: `threads` is {threads}; a block has 1 to 1024 threads"):
            call(x, 1, threads)


def test_more_blocks_than_a_grid_has_are_refused_before_memory_is_asked_for(geometry):
    x = torch.zeros(1, device=geometry.device)
    with pytest.raises(RuntimeError, match="`x` has 2147483648 elements, at 1 a block more blocks than the 2147483647"):
        geometry.ops.sweep(x.expand(2**31), 1, 1)
    with pytest.raises(RuntimeError, match="at 4096 a block more blocks .*more threads a block, or more elements a thread"):
        geometry.ops.forward(x.expand(2**43), 9)


def test_other_arguments_are_refused_by_name(geometry):
    x = torch.zeros(6, device=geometry.device)
    with pytest.raises(RuntimeError, match="geometry: `x` is int64; geometry takes float16"):
        geometry(x.long())
    for call in (geometry.ops.forward, geometry.ops.forward_out):
        with pytest.raises(RuntimeError, match="no such version"):
            call(*([x] if call == geometry.ops.forward else [x, x.clone()]), geometry.latest + 1)
    with pytest.raises(RuntimeError, match="no such version"):
        geometry.ops.occupancy(x, geometry.latest + 1, 32)
    with pytest.raises(RuntimeError, match="`y` must be dense"):
        geometry.ops.sweep_out(x[:3], torch.zeros(6, device=geometry.device)[::2], 1, 32)
    with pytest.raises(RuntimeError, match="`y` shares memory with `x`"):
        geometry.ops.sweep_out(x[:3], x[1:4], 1, 32)
    with pytest.raises(RuntimeError, match=r"`x` is not strided.*x.to_dense\(\)"):
        geometry(x.to_sparse())
    with pytest.raises(NotImplementedError, match="only reverse mode"):
        torch.func.jvp(geometry, (x,), (x,))


def test_the_cpu_has_no_occupancy(monkeypatch):
    monkeypatch.setenv("LABKIT_BACKEND", "host")
    geometry = labkit.load("geometry")
    with pytest.raises(RuntimeError, match="geometry: CUDA gave no occupancy: operation not supported: .*ask on a GPU"):
        geometry.ops.occupancy(torch.zeros(1), 1, 256)
    assert geometry(torch.zeros(1)).item() == 0  # the error is not left behind for the next launch


def test_occupancy_gives_blocks_registers_and_shared_bytes(tmp_path, monkeypatch):
    told = edited(tmp_path, monkeypatch, "geometry", None, "geometry/geometry.cu",
                  "found.blocks = blocks;\n    return launch_error();", "found = {threads, version, 3};\n    launch_error();\n"
                  "    return nullptr;")
    assert told.ops.occupancy(torch.zeros(1), 5, 96) == (96, 5, 3)


@pytest.mark.gpu
def test_more_elements_than_32_bits_count(geometry):
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB of free GPU memory")
    x = torch.zeros(2**32 + 5, dtype=torch.float16, device="cuda")
    x[::2**20 + 7] = 1
    x[-1] = 1
    want = x * geometry(x[:1])
    for version in geometry.versions:
        assert torch.equal(geometry.ops.sweep(x, version, 96), want)


@pytest.mark.gpu
def test_every_version_starts_with_1024_threads(geometry):
    for dtype in geometry.reference.DTYPES:
        for version in geometry.versions:
            blocks, registers, shared = geometry.ops.occupancy(torch.zeros(1, dtype=dtype, device="cuda"), version, 1024)
            assert blocks >= 1 and 0 < registers <= 64 and shared == 0


# ---- the machine code ----

def nvcc(*flags):
    from torch.utils.cpp_extension import COMMON_NVCC_FLAGS

    done = subprocess.run([machine.find_nvcc(), "-std=c++20", *COMMON_NVCC_FLAGS, "-I", kernels() / "include", *flags,
                           source_path("geometry")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.skipif(machine.find_nvcc() is None, reason="nvcc is not installed")
def test_a_thread_loads_its_elements_one_by_one_before_it_stores_the_first(tmp_path):
    nvcc("-arch=sm_90", "-ptx", "-o", tmp_path / "kernel.ptx")
    found = re.findall(r"\.entry (\w+)\((.*?)^}", (tmp_path / "kernel.ptx").read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 4 * 9
    for name, text in found:
        elements = int(re.search(r"kernelILi(\d+)E", name)[1])
        bits = 64 if name.count("Ed") else 32 if name.count("Ef") else 16
        accesses = re.findall(r"\b(ld|st)\.global(?:\.nc)?\.\w?(\S+?)\s", text)
        # What follows is the end of the array, an element at a time.
        assert accesses[:2 * elements] == [("ld", str(bits))] * elements + [("st", str(bits))] * elements, name
        assert accesses[2 * elements:][::2] == [("ld", str(bits))] * (len(accesses) // 2 - elements), name


# ---- wrong kernels must be rejected ----

# name: (version, file, what stands there, what the mutant has instead, what the failure says)
WRONG = "elements are wrong|not written"
MUTANTS = {
    "leaves out the end": (3, "geometry.cu", "i < n; i += step", "i < n - (n > 1); i += step", WRONG),
    "one element past the end": (8, "geometry.cu", "i < n; i += step", "i < n + (n > 1); i += step", "wrote outside of y"),
    "blocks that overlap": (4, "geometry.cu", "blockDim.x * ELEMENTS;", "blockDim.x;", WRONG),
    "another width than the block's": (7, "geometry.cu", "1 : blockDim.x;", "1 : 128;", WRONG),
    "a thread's elements overlap its neighbour's": (5, "geometry.cu", "(CONSECUTIVE ? ELEMENTS : 1)", "1",
                                                    WRONG),
    "too few blocks": (6, "geometry.cu", "divide_up(n, int64_t(threads) * instance.elements)",
                       "n / (int64_t(threads) * instance.elements) + (n < 512)", WRONG),
    "sigmoid of z": (1, "geometry.cu", "A = 1.59576912160573071176", "A = 0.79788456080286535588", WRONG),
    "float64 in float32": (2, "geometry.cu", "gelu(to_compute(loaded[k]))", "gelu(float(to_compute(loaded[k])))",
                           "float64.*elements are wrong"),
    "ignores strides": (1, "binding.cpp", "torch_op::dense(x)", "x", WRONG),
    "a wrong derivative": (1, "op.py", "* (1 - s))", "* (1 + s))", "Jacobian mismatch"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_rejected(mutant, tmp_path, monkeypatch):
    version, file, there, instead, says = MUTANTS[mutant]
    op = edited(tmp_path, monkeypatch, "geometry", version, f"geometry/{file}", there, instead)
    with pytest.raises((CheckFailed, RuntimeError), match=says):
        labkit.check(op)
