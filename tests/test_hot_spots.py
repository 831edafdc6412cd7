"""`labkit.hot`: how the time of a profile is shared out among kernels and operators."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import labkit
from labkit import hot_spots, report, results
from labkit.hot_spots import curve, few, own_times, ranked


def event(cat, name, ts, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "pid": 1, "args": args}


def launched(number, at, kernel, start, us):
    return [event("cuda_runtime", "cudaLaunchKernel", at, 1, correlation=number),
            event("kernel", kernel, start, us, 7, correlation=number)]


# Two steps: in each a multiplication of matrices of 60 µs, two of 5 µs of the same name, and an operator of labkit's of 30 µs.
TRACE = {"traceEvents": [piece for step in (0, 1000) for piece in (
    event("cpu_op", "aten::linear", step + 1, 20), event("cpu_op", "aten::addmm", step + 2, 10),
    *launched(step + 1, step + 3, "big_gemm", step + 100, 60),
    event("cpu_op", "aten::mul", step + 30, 10),
    *launched(step + 2, step + 31, "void at::native::vectorized_elementwise_kernel<4, MulFunctor<float> >", step + 160, 5),
    *launched(step + 3, step + 33, "void at::native::vectorized_elementwise_kernel<8, MulFunctor<float> >", step + 170, 5),
    event("cpu_op", "gelu_0123456789ab::forward", step + 50, 10),
    *launched(step + 4, step + 52, "v7::kernel<float>", step + 180, 30))]}


@pytest.fixture
def gpu(session, monkeypatch):
    monkeypatch.setattr(hot_spots.machine, "backend", lambda: "cuda")
    monkeypatch.setattr(report, "here", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(hot_spots, "traced", lambda call: call() and TRACE)
    monkeypatch.setattr(hot_spots, "_ms_a_step", lambda step, steps: 0.2)
    return session


def test_kernels_and_operators_by_their_time(gpu):
    calls = []
    rows = labkit.hot("hot", lambda: calls.append(1), "A step", steps=2)
    assert len(calls) == 2
    assert rows == [
        {"kernel": "big_gemm", "calls a step": 1, "ms a step": 0.06, "share, %": 60, "summed up, %": 60},
        {"kernel": "v7::kernel", "calls a step": 1, "ms a step": 0.03, "share, %": 30, "summed up, %": 90},
        {"kernel": "mul", "calls a step": 2, "ms a step": 0.01, "share, %": 10, "summed up, %": 100}]
    tables = gpu().tables
    assert tables["hot"]["rows"] == rows
    assert [(row["operator"], row["share, %"]) for row in tables["hot_operators"]["rows"]] == [
        ("aten::addmm", 60), ("gelu::forward", 30), ("aten::mul", 10)]


@pytest.mark.parametrize("name, expected", [
    ("gelu_0123456789ab::forward", "gelu::forward"), ("add_norm_0123456789ab::backward_out", "add_norm::backward_out"),
    ("GeneratedBackwardFor_add_norm_0123456789ab_backward_default", "add_norm::backward"),
    ("aten::mm", "aten::mm"), ("GeneratedBackwardFor_other", "GeneratedBackwardFor_other"), ("", "")])
def test_an_operators_name_is_without_its_build(name, expected):
    assert hot_spots._named(name) == expected


def test_how_few_make_most_of_the_time_and_how_long_the_gpu_idles(gpu):
    labkit.hot("hot", lambda: 1, "A step", steps=2)
    summary = {row["what"]: row["value"] for row in gpu().tables["hot_summary"]["rows"]}
    assert summary == {"distinct kernels": 3, "of them make 80% of the time": 2, "that is, of the distinct kernels, %": 66.7,
                       "operators that make 80% of the time": 2, "operators that launch kernels": 3, "launches a step": 4,
                       "ms a step, without the profiler": 0.2, "in kernels, ms a step": 0.1, "the GPU idles, % of a step": 50}
    drawn = gpu().tables["hot_curve"]
    assert drawn["x"]["values"] == [0, 33.33, 66.67, 100] and drawn["series"]["kernels"] == [0, 60, 90, 100]


@pytest.mark.parametrize("times, expected", [([80, 20], 1), ([79, 21], 2), ([1] * 10, 8), ([5], 1), ([100, 1, 1, 1], 1),
                                             ([0.1] * 5, 4)])
def test_few_is_the_smallest_number_that_reaches_the_share(times, expected):
    spent = {str(k): [time / 2, time / 2] for k, time in enumerate(times)}
    assert few(spent) == expected
    assert few(dict(reversed(spent.items()))) == expected


def test_beyond_the_table_all_others_share_a_row():
    spent = {str(k): [float(k)] for k in range(1, hot_spots.MOST + 4)}
    rows = ranked(spent, 1, "kernel")
    assert len(rows) == hot_spots.MOST + 1 and rows[-1]["kernel"] == "3 others"
    assert rows[-1]["ms a step"] == 0.006 and rows[-1]["calls a step"] == 3 and rows[-1]["summed up, %"] == 100
    one_more = ranked({str(k): [1.0] for k in range(hot_spots.MOST + 1)}, 1, "kernel")
    assert len(one_more) == hot_spots.MOST + 1 and "others" not in one_more[-1]["kernel"]


def test_a_curve_of_one_kernel_is_one_too(session):
    results.add("one", curve({"only": [3.0]}, "One"))
    assert session().tables["one"]["series"]["kernels"] == [0, 100]


def test_an_operators_own_time_is_without_those_that_it_calls():
    trace = {"traceEvents": [
        event("cpu_op", "outer", 0, 100), event("cpu_op", "inner", 10, 50), event("cpu_op", "innermost", 10, 5),
        event("cpu_op", "innermost", 30, 7), event("cpu_op", "beside", 60, 10), event("cpu_op", "next", 100, 4),
        event("cpu_op", "elsewhere", 15, 60, tid=2), event("user_annotation", "no operator", 0, 90)]}
    assert own_times(trace) == [("outer", 40), ("inner", 38), ("innermost", 5), ("elsewhere", 60), ("innermost", 7),
                                ("beside", 10), ("next", 4)]


def test_without_a_gpu_the_operators_of_the_cpu_are_shown_as_such_and_nothing_is_kept(session, capsys):
    model, x = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 8)), torch.randn(512, 256)
    rows = labkit.hot("hot", lambda: F.gelu(model(x)).sum().backward(), "A step")
    said = capsys.readouterr().out
    assert "there is no GPU here, and nothing is recorded" in said and "which says nothing of a GPU" in said
    assert not session().tables
    by_name = {row["operator"]: row for row in rows}
    assert {"aten::addmm", "aten::mm", "aten::gelu"} <= set(by_name)
    assert by_name["aten::addmm"]["calls a step"] == 2
    assert rows[-1]["summed up, %"] == pytest.approx(100, abs=0.2)
    assert by_name["aten::addmm"]["share, %"] + by_name["aten::mm"]["share, %"] > 30


def test_what_runs_nothing_is_refused(gpu, monkeypatch):
    with pytest.raises(ValueError, match="steps is 0"):
        labkit.hot("hot", lambda: None, "Nothing", steps=0)
    monkeypatch.setattr(hot_spots, "traced", lambda call: {"traceEvents": []})
    with pytest.raises(ValueError, match="launched nothing on the GPU"):
        labkit.hot("hot", lambda: None, "Nothing")
    monkeypatch.setattr(hot_spots.machine, "backend", lambda: "host")
    with pytest.raises(ValueError, match="called no operator"):
        labkit.hot("hot", lambda: None, "Nothing")


@pytest.mark.gpu
def test_the_kernels_of_a_step_on_a_gpu(session):
    gelu = labkit.load("gelu")
    model = nn.Linear(2048, 2048, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(8192, 2048, device="cuda", dtype=torch.bfloat16)
    rows = labkit.hot("hot", lambda: gelu(model(x)).sum().backward(), "A step")
    tables = session().tables
    assert rows[-1]["summed up, %"] == pytest.approx(100, abs=0.3)
    operators = {row["operator"]: row for row in tables["hot_operators"]["rows"]}
    assert any(name.startswith("gelu::forward") for name in operators) and "aten::mm" in operators
    summary = {row["what"]: row["value"] for row in tables["hot_summary"]["rows"]}
    assert summary["launches a step"] == sum(row["calls a step"] for row in rows)
    assert 0 < summary["in kernels, ms a step"] < 1.1 * summary["ms a step, without the profiler"]
