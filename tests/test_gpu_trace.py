"""Which of a GPU's kernels are an activation's: the marks that it leaves, and how a trace is read by them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import record_function
from torch.utils.checkpoint import checkpoint

import labkit
from labkit import gpu_trace, report, results
from labkit.gpu_trace import BEGINS, ENDS, FORWARD, Kernel, attribute, marked, short, traced
from labkit.operator import python_part

rivals = python_part("gelu", "rivals")
MAIN, AUTOGRAD = 11, 12


def event(cat, name, ts, dur, tid=MAIN, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "pid": 1, "args": args}


def launched(number, at, kernel, start, us, tid=MAIN, cat="cuda_runtime", what="kernel"):
    """A launch at `at`, and what it started on the GPU, which runs later."""
    return [event(cat, "cudaLaunchKernel", at, 3, tid, correlation=number),
            event(what, kernel, start, us, 7, correlation=number, stream=7)]


# The GPU lags behind: while it runs what the forward pass launched, the host is in the backward pass already.
STEP = {"traceEvents": [
    event("user_annotation", FORWARD, 100, 50),
    event("gpu_user_annotation", FORWARD, 0, 5000, 7),  # ranges as the GPU saw them: not when their work was launched
    event("gpu_user_annotation", BEGINS, 1142, 12, 7),
    *launched(1, 90, "gemm before", 1000, 40),
    *launched(2, 110, "gelu", 1040, 10),
    *launched(3, 140, "gelu by the driver", 1051, 11, cat="cuda_driver"),
    *launched(4, 150, "gemm after", 1062, 40),
    event("user_annotation", BEGINS, 300, 2, AUTOGRAD), event("user_annotation", ENDS, 400, 2, AUTOGRAD),
    *launched(5, 290, "gemm backward", 1102, 40, AUTOGRAD),
    *launched(6, 320, "gelu backward", 1142, 12, AUTOGRAD),
    *launched(7, 330, "copy", 1154, 5, AUTOGRAD, what="gpu_memcpy"),
    *launched(8, 340, "by another thread", 1159, 7, MAIN),
    *launched(9, 410, "gemm at last", 1170, 40, AUTOGRAD),
    *launched(10, 420, "fill", 1210, 2, AUTOGRAD, what="gpu_memset"),
    event("cuda_runtime", "cudaDeviceSynchronize", 500, 900, correlation=99),
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]}


def test_a_kernel_is_of_the_pass_that_launched_it():
    assert [(kernel.name, kernel.part) for kernel in attribute(STEP)] == [
        ("gemm before", "rest"), ("gelu", "forward"), ("gelu by the driver", "forward"), ("gemm after", "rest"),
        ("gemm backward", "rest"), ("gelu backward", "backward"), ("copy", "backward"), ("by another thread", "rest"),
        ("gemm at last", "rest"), ("fill", "rest")]
    assert attribute(STEP)[1] == Kernel("gelu", 1040, 10, "forward")


def test_without_its_launch_a_kernel_is_of_the_pass_of_its_operator():
    kept = {"traceEvents": [event("user_annotation", FORWARD, 100, 50),
                            event("cpu_op", "aten::gelu", 110, 9, **{"External id": 3}),
                            event("kernel", "gelu", 900, 10, 7, correlation=1, **{"External id": 3})]}
    assert [kernel.part for kernel in attribute(kept)] == ["forward"]
    moved = {"traceEvents": [{**one, "tid": AUTOGRAD} if one["cat"] == "cpu_op" else one for one in kept["traceEvents"]]}
    assert [kernel.part for kernel in attribute(moved)] == ["rest"]


def test_a_kernel_is_of_the_innermost_operator_of_the_thread_that_launched_it():
    trace = {"traceEvents": [
        event("cpu_op", "aten::addmm", 110, 20), event("cpu_op", "aten::t", 105, 4), event("cpu_op", "aten::linear", 100, 50),
        event("cpu_op", "aten::inner", 110, 3),  # begins with the one that it is in
        event("cpu_op", "aten::mm", 100, 90, AUTOGRAD),
        *launched(1, 112, "in addmm", 1000, 1), *launched(2, 131, "in linear", 1010, 1), *launched(3, 151, "alone", 1020, 1),
        *launched(4, 112, "in mm", 1030, 1, AUTOGRAD), *launched(5, 115, "as early", 990, 1)]}
    assert [(kernel.name, kernel.operator) for kernel in attribute(trace)] == [
        ("as early", "aten::addmm"), ("in addmm", "aten::inner"), ("in linear", "aten::linear"), ("alone", ""),
        ("in mm", "aten::mm")]
    kept = {"traceEvents": [event("cpu_op", "aten::gelu", 110, 9, **{"External id": 3}),
                            event("kernel", "gelu", 900, 10, 7, correlation=1, **{"External id": 3})]}
    assert attribute(kept)[0].operator == "aten::gelu"


def test_the_order_of_the_events_in_the_file_does_not_matter():
    assert attribute({"traceEvents": STEP["traceEvents"][::-1]}) == attribute(STEP)


def without(name):
    return {"traceEvents": [one for one in STEP["traceEvents"] if one["name"] != name]}


@pytest.mark.parametrize("trace, match", [
    (without(BEGINS), "where another mark was due"), (without(ENDS), "no end of it"),
    ({"traceEvents": STEP["traceEvents"] + [event("user_annotation", BEGINS, 350, 2, AUTOGRAD)]}, "another mark was due"),
    (without("cudaLaunchKernel"), "no launch for the kernel 'gemm before'")])
def test_a_trace_that_cannot_be_read_for_sure_is_refused(trace, match):
    with pytest.raises(ValueError, match=match):
        attribute(trace)


def test_marks_of_two_threads_do_not_meet():
    shifted = [{**one, "tid": 13, "ts": one["ts"] + 50} for one in STEP["traceEvents"] if one["name"] in (BEGINS, ENDS)]
    trace = {"traceEvents": STEP["traceEvents"] + shifted + launched(20, 420, "of the other", 1300, 1, 13)}
    inside = [kernel.name for kernel in attribute(trace) if kernel.part == "backward"]
    assert inside == ["gelu backward", "copy", "of the other"]


# -- the marks, in what the profiler sees of a training step on the CPU ---------------------------------------

class Perceptron(nn.Module):
    """Two residual two-layer perceptrons behind LayerNorms, in mixed precision, as in the Transformer's blocks."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.ModuleList([nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)])
                                   for _ in range(2))

    def forward(self, x, activation, wrap=lambda block, *inputs: block(*inputs)):
        def block(x, norm, widen, narrow):
            return narrow(activation(widen(norm(x))))

        for norm, widen, narrow in self.parts:
            x = x + wrap(block, x, norm, widen, narrow)
        return x.square().mean()


def nodes_inside(activation, wrap=lambda block, *inputs: block(*inputs)):
    """The autograd nodes that ran between the marks of the backward passes, and how often a forward range was entered."""
    torch.manual_seed(0)
    model, x = Perceptron(), torch.randn(3, 5, 16)

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x, activation, wrap)
        loss.backward()

    step()
    trace = traced(step)
    events = sorted((one for one in trace["traceEvents"] if one.get("ph") == "X"), key=lambda one: one["ts"])
    forward, backward = gpu_trace._ranges(events)
    # A node's event begins before the hooks that run ahead of it, so it is its end that lies between the marks.
    ran = [one["name"].rpartition(": ")[2] for one in events if "evaluate_function" in one["name"]
           and gpu_trace._inside({"tid": one["tid"], "ts": one["ts"] + one["dur"]}, backward)]
    return ran, len(forward), len(backward)


@pytest.mark.parametrize("activation, nodes", [
    (rivals.native, ["GeluBackward0"]),
    (rivals.composed, ["MulBackward0"] * 6 + ["AddBackward0"] * 2 + ["TanhBackward0"]),
    (rivals.composed_pow, ["MulBackward0"] * 4 + ["AddBackward0"] * 2 + ["TanhBackward0", "PowBackward0"]),
    (torch.compile(rivals.composed, fullgraph=True, dynamic=False, backend="aot_eager"), ["CompiledFunctionBackward"]),
    (lambda x: checkpoint(rivals.native, x, use_reentrant=False), ["GeluBackward0"])],
    ids=["native", "composed", "pow", "compiled", "checkpointed"])
def test_between_the_marks_autograd_runs_the_activations_nodes_alone(activation, nodes):
    ran, forward, backward = nodes_inside(marked(activation))
    assert sorted(ran) == sorted(nodes * 2) and forward == backward == 2


def test_a_block_that_is_computed_again_is_marked_again():
    def again(block, *inputs):
        return checkpoint(block, *inputs, use_reentrant=False)

    assert nodes_inside(marked(rivals.native), again) == (["GeluBackward0"] * 2, 4, 2)


@pytest.mark.parametrize("activation", [lambda x: x, lambda x: F.gelu(x.detach())], ids=["identity", "detached"])
def test_an_activation_without_a_backward_pass_leaves_no_marks_of_one(activation):
    assert nodes_inside(marked(activation)) == ([], 2, 0)


def test_an_input_that_needs_no_gradient_is_marked_forward_alone():
    x = torch.randn(8)
    trace = traced(lambda: marked(rivals.native)(x))
    assert [one["name"] for one in trace["traceEvents"] if one.get("cat") == "user_annotation"
            and one["name"].startswith("activation")] == [FORWARD]
    with pytest.raises(ValueError, match="input needs no gradient"):
        marked(nn.PReLU())(x)


def test_an_activation_that_works_in_place_is_refused():
    with pytest.raises(ValueError, match="in place"):
        marked(torch.relu_)(torch.randn(8, requires_grad=True) * 1)


def test_marks_change_neither_values_nor_gradients():
    x = torch.randn(4, 4, requires_grad=True)
    plain, = torch.autograd.grad(rivals.composed(x * 2).sum(), x)
    y = marked(rivals.composed)(x * 2)
    assert torch.equal(y, rivals.composed(x * 2)) and torch.equal(torch.autograd.grad(y.sum(), x)[0], plain)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("out of something")


def test_nothing_stays_open_when_the_activation_fails():
    """A range left open would reach to the end of the trace, and take in all that comes after it."""
    def fail(x):
        raise RuntimeError("out of something")

    def step():
        x = torch.randn(8, requires_grad=True)
        for activation in (fail, Fails.apply):
            with pytest.raises(RuntimeError, match="out of something"):
                marked(activation)(x * 1).sum().backward()
        with record_function("after"):
            torch.zeros(3) + 1

    marks = {one["name"]: one for one in traced(step)["traceEvents"] if one.get("cat") == "user_annotation"}
    assert BEGINS in marks and ENDS not in marks
    assert all(marks[name]["ts"] + marks[name]["dur"] <= marks["after"]["ts"] for name in (FORWARD, BEGINS))


def test_only_the_second_of_two_calls_is_in_the_trace():
    calls = []

    def call():
        calls.append(len(calls))
        with record_function(f"call {len(calls)}"):
            torch.zeros(3) + 1

    names = {one["name"] for one in traced(call)["traceEvents"]}
    assert len(calls) == 2 and "call 2" in names and "call 1" not in names


# -- names -----------------------------------------------------------------------------------------------------

LAMBDA = "(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int)"


@pytest.mark.parametrize("name, expected", [
    ("void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, "
     "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int)", "mul"),
    ("void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::AUnaryFunctor<float, float, float, "
     "at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)::{lambda(int)#1}>(int)", "mul"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >",
     "add"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<c10::BFloat16>, char*>(int)", "add"),
    (f"void at::native::vectorized_elementwise_kernel<4, at::native::tanh_kernel_cuda{LAMBDA}", "tanh"),
    (f"void at::native::vectorized_elementwise_kernel<4, at::native::tanh_backward_kernel_cuda{LAMBDA}", "tanh_backward"),
    (f"void at::native::vectorized_elementwise_kernel<4, at::native::GeluBackwardCUDAKernelImpl{LAMBDA}", "gelu_backward"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::pow_tensor_scalar_kernel_impl<"
     "float, float>(at::TensorIteratorBase&, float)::{lambda(float)#2}, std::array<char*, 2ul> >(int)", "pow_tensor_scalar"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int)", "fill"),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>, "
     "at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4> >(int)", "fused_adam"),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)", "vectorized_layer_norm_kernel"),
    ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64> >(pytorch_flash::Flash_fwd_params)", "flash_fwd_kernel"),
    ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_NTT", "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_NTT"),
    ("triton_poi_fused_add_mul_tanh_0", "triton_poi_fused_add_mul_tanh_0"),
    ("void v7::kernel<Forward, __nv_bfloat16>(Arrays<1>)", "v7::kernel"), ("kernel", "kernel"),
    ("Memset (Device)", "Memset"), ("(odd)", "(odd)")])
def test_names_are_shortened_to_what_a_kernel_computes(name, expected):
    assert short(name) == expected


# -- kernels ---------------------------------------------------------------------------------------------------

def test_gaps_are_when_nothing_runs():
    ran = [Kernel("a", 0, 5, "forward"), Kernel("b", 7, 10, "forward"), Kernel("c", 8, 2, "forward"),
           Kernel("d", 20, 1, "forward")]
    assert gpu_trace.idle(ran) == 2 + 3 and gpu_trace.idle(ran[:1]) == 0


def test_the_kernels_of_a_call_and_where_they_lie(session, monkeypatch):
    monkeypatch.setattr(gpu_trace.machine, "backend", lambda: "cuda")
    monkeypatch.setattr(gpu_trace, "Gpu", lambda: None)
    monkeypatch.setattr(gpu_trace, "lead_in", lambda gpu: None)
    monkeypatch.setattr(gpu_trace, "traced", lambda call: STEP)
    monkeypatch.setattr(report, "here", lambda: "a GPU")
    kept = {}
    monkeypatch.setattr(results, "add", kept.__setitem__)
    rows = labkit.kernels("gelu", {"composed": torch.tanh}, torch.ones(3), "Kernels")
    assert rows == [{"variant": "composed", "kernels": 2, "in kernels, µs": 21, "first start to last end, µs": 22,
                     "idle between, µs": 1}]
    assert kept["gelu"]["rows"] == rows
    assert kept["gelu_timeline"] == {"kind": "timeline", "title": "Kernels", "unit": "µs", "lanes": [
        {"name": "composed", "spans": [{"label": "gelu", "start": 0, "end": 10},
                                       {"label": "gelu by the driver", "start": 11, "end": 22}]}]}


def test_without_a_gpu_recorded_kernels_are_shown_and_nothing_is_called(session, monkeypatch, capsys):
    monkeypatch.setattr(gpu_trace.machine, "backend", lambda: "host")
    assert labkit.kernels("gelu", {"composed": None}, torch.ones(3), "Kernels") == [] and not session().tables
    assert "Kernels: there is no GPU here, and nothing is recorded" in capsys.readouterr().out


@pytest.mark.gpu
def test_a_calls_kernels_on_a_gpu_are_those_of_its_operators(session):
    gelu, x = labkit.load("gelu"), torch.randn(1 << 26, device="cuda", dtype=torch.bfloat16)
    rows = {row["variant"]: row for row in labkit.kernels("gelu", {"composed": rivals.composed, "ours": gelu}, x, "Kernels")}
    assert (rows["composed"]["kernels"], rows["ours"]["kernels"]) == (9, 1)
    assert 4 < rows["composed"]["in kernels, µs"] / rows["ours"]["in kernels, µs"] < 20
    for row in rows.values():
        assert row["first start to last end, µs"] == pytest.approx(row["in kernels, µs"] + row["idle between, µs"], abs=0.5)
        assert row["idle between, µs"] < 0.2 * row["in kernels, µs"]
    spans = {lane["name"]: lane["spans"] for lane in session().tables["gelu_timeline"]["lanes"]}
    assert [span["label"] for span in spans["composed"]] == ["mul", "mul", "mul", "mul", "add", "mul", "tanh", "add", "mul"]
