"""The GeLU operator where only a GPU can show it: streams, graphs, inductor, sizes beyond 32 bits, wrong devices."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import labkit
from labkit import operator

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gelu():
    return labkit.load("gelu")


def close(got, want):
    torch.testing.assert_close(got.double(), want.double(), rtol=2**-8, atol=1e-5)


def test_runs_on_the_current_stream(gelu):
    x = torch.zeros(1 << 20, device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # 0.1 s: a launch on another stream would read x before it is filled
        x.fill_(2.0)
        y = gelu(x)
    side.synchronize()
    close(y, gelu.reference.gelu(torch.full_like(x, 2.0).double()))


@pytest.mark.parametrize("save", ["input", "derivative"])
def test_in_a_cuda_graph_forward_and_backward(gelu, save):
    x = torch.randn(4099, device="cuda", requires_grad=True)
    grad = torch.randn(4099, device="cuda")

    def step():
        y = gelu(x, save=save)
        return y, *torch.autograd.grad(y, x, grad)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, grad_x = step()
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.no_grad():
            x.copy_(torch.randn(4099))
        graph.replay()
        close(y, gelu.reference.gelu(x.detach().double()))
        close(grad_x, grad.double() * gelu.reference.gelu_derivative(x.double()))


@pytest.mark.parametrize("save", ["input", "derivative"])
def test_under_inductor_in_one_graph(gelu, save):
    torch._dynamo.reset()
    linear = torch.nn.Linear(64, 96, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(lambda x: gelu(linear(x), save=save) * 2, fullgraph=True)
    for rows in (8, 13):
        x = torch.randn(rows, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        y = compiled(x)
        y.sum().backward()
        got = x.grad.clone()
        x.grad = None
        (gelu(linear(x), save=save) * 2).sum().backward()
        close(y, gelu(linear(x)) * 2)
        torch.testing.assert_close(got, x.grad, rtol=2**-6, atol=1e-2)


def test_autocast_with_a_linear_layer(gelu):
    linear = torch.nn.Linear(32, 32, device="cuda")
    x = torch.randn(4, 32, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.float16):
        y = gelu(linear(x))
    y.sum().backward()
    assert y.dtype == torch.float16 and x.grad.dtype == torch.float32 and x.grad.isfinite().all()


def test_more_elements_than_32_bits_count(gelu):
    n = 2**31 + 4099
    if torch.cuda.mem_get_info()[0] < 6 * 2 * n:
        pytest.skip(f"needs {6 * 2 * n / 2**30:.0f} GiB of free GPU memory")
    x = torch.zeros(n, dtype=torch.float16, device="cuda")
    edges = [slice(0, 8192), slice(2**31 - 4096, 2**31 + 4099)]
    for part in edges:
        x[part] = torch.randn(8192 if part.start == 0 else 8195, device="cuda").half()
    grad, y, derivative = torch.ones_like(x), torch.empty_like(x), torch.empty_like(x)
    for version in gelu.versions:
        runs = {"forward": ((x, y), gelu.reference.gelu), "backward": ((grad, x, y), gelu.reference.gelu_derivative)}
        for mode, (tensors, reference) in runs.items():
            y.fill_(torch.nan)
            getattr(gelu.ops, f"{mode}_out")(*tensors, version)
            assert not y.isnan().any(), f"v{version} {mode}"
            for part in edges:
                torch.testing.assert_close(y[part].double(), reference(x[part].double()), rtol=2**-9, atol=2e-2)
    gelu.ops.forward_derivative_out(x, y, derivative, gelu.latest)
    gelu.ops.backward_saved_out(grad, derivative, y, gelu.latest)
    assert torch.equal(y, derivative)


def test_tensors_on_the_cpu_are_refused_by_name(gelu):
    with pytest.raises(RuntimeError, match=r"`x` is on the CPU, and this build runs on CUDA. Pass x.cuda\(\)"):
        gelu(torch.ones(4))
    x = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError, match=r"`grad` is on the CPU.*Pass grad.cuda\(\)"):
        gelu.ops.backward(torch.ones(4), x, gelu.latest)
    with pytest.raises(RuntimeError, match=r"`y` is on the CPU"):
        gelu.ops.forward_out(x, torch.ones(4), gelu.latest)


def test_every_device_of_the_machine(gelu):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    x = torch.randn(1000, device="cuda:1")
    assert torch.cuda.current_device() == 0
    y = gelu(x)
    assert y.device == x.device and torch.cuda.current_device() == 0
    close(y, gelu.reference.gelu(x.double()))
    with pytest.raises(RuntimeError, match="`grad` is on device 0 and `x` on device 1"):
        gelu.ops.backward(torch.ones(1000, device="cuda:0"), x, gelu.latest)


def sanitized(tool):
    """The output of every_gelu_launch.py under compute-sanitizer, each tensor in an allocation of its own."""
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(sanitizer).exists():
        pytest.skip("compute-sanitizer is not installed")
    labkit.load("gelu")  # built before, not under the sanitizer
    return subprocess.run([sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable,
                           str(Path(__file__).with_name("every_gelu_launch.py"))], capture_output=True, text=True,
                          timeout=400, env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})


# GeLU has no shared memory and no barrier, so racecheck and synccheck can only fail if that changes.
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_compute_sanitizer_finds_nothing(tool):
    done = sanitized(tool)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "ERROR SUMMARY: 0 errors" in done.stdout or "RACECHECK SUMMARY: 0 hazards" in done.stdout, done.stdout[-2000:]
    assert "launched 448" in done.stdout


@pytest.mark.parametrize("tool, there, instead", [
    ("memcheck", "threadIdx.x < rest)", "threadIdx.x < rest + (n > 4096))"),
    ("initcheck", "store_vec(a.out[k] + at, out[k]);", "if (i != 7) store_vec(a.out[k] + at, out[k]);")])
def test_compute_sanitizer_finds_what_is_planted(tool, there, instead, tmp_path, monkeypatch):
    kernels = tmp_path / "kernels"
    shutil.copytree(operator.kernels(), kernels)
    source = kernels / "gelu" / "gelu.cu"
    assert there in source.read_text()
    source.write_text(source.read_text().replace(there, instead))
    monkeypatch.setenv("LABKIT_KERNELS", str(kernels))
    assert sanitized(tool).returncode == 9
