"""`labkit.check` must reject wrong kernels: each mutant is the GeLU operator with one fault that people ship."""

import dataclasses
import types

import pytest
import torch
from edited_kernels import edited

import labkit
from labkit.verdict import CheckFailed

REST = "rest_after_vectors<Mode, T>(a, n);\n}"
# name: (version, file, what stands there, what the mutant has instead, mode, what the failure says). Those that store
# out of bounds spare n = 1, the first launch that `load` makes, where nothing guards the memory.
MUTANTS = {
    "stores nothing": (4, "gelu/gelu.cu", "store_vec(a.out[k] + at, out[k]);", ";", "forward", "elements are wrong"),
    "does the first half": (4, "gelu/gelu.cu", "if (i < vectors) {", "if (i < vectors / 2) {", "forward",
                            "elements are wrong"),
    "drops the second vector": (5, "gelu/gelu.cu", "for (int j = 0; j < VECTORS; ++j) {\n        const int64_t i = first + j * THREADS;\n",
                                "for (int j = 0; j < 1; ++j) {\n        const int64_t i = first + j * THREADS;\n", "forward",
                                "elements are wrong"),
    "skips the tail": (4, "gelu/gelu.cu", "threadIdx.x < rest)", "threadIdx.x + 1 < rest)", "forward",
                       "elements are wrong"),
    "stores one past the end": (4, "gelu/gelu.cu", "threadIdx.x < rest)", "threadIdx.x < rest + (n > 1))", "forward",
                                "wrote outside of y"),
    "stores before the start": (4, "gelu/gelu.cu", REST, REST[:-1] + "    if (n > 1 && i == 0) a.out[0][-1] = a.out[0][0];\n}",
                                "forward", "wrote outside of y"),
    "changes its input": (4, "gelu/gelu.cu", REST, REST[:-1] + "    if (i == 1) const_cast<T*>(a.in[0])[0] = a.out[0][0];\n}",
                          "forward", "changed its input x"),
    "looks at one pointer's alignment": (4, "gelu/gelu.cu", "    for (const T* p : a.out) aligned = aligned && is_vec_aligned(p);", "",
                                         "forward", "assert"),
    "erf for tanh": (4, "gelu/gelu.cu", "return tanhf(z);", "return erff(z / 1.1283791671f);", "forward",
                     "elements are wrong"),
    "a tanh that is off by a hundredth": (6, "gelu/gelu.cu", "return approx_tanh(z);", "return approx_tanh(1.01f * z);", "forward",
                                          "elements are wrong"),
    "wrong gradient scale": (4, "gelu/gelu.cu", "(1 + F(3 * B) * u)", "(1 + F(B) * u)", "backward", "elements are wrong"),
    "swaps its outputs": (7, "gelu/gelu.cu", "eval<T>(in[0], out[0], out[1]);", "eval<T>(in[0], out[1], out[0]);",
                          "forward_derivative", "elements are wrong"),
    "forgets the gradient": (7, "gelu/gelu.cu", "out[0] = in[0] * in[1];", "out[0] = in[1];", "backward_saved", "elements are wrong"),
    "squares in half precision": (4, "gelu/gelu.cu", "const F u = x * x;",
                                  "const F u = F(__half2float(__float2half_rn(float(x * x))));", "forward", "elements are wrong"),
    "ignores strides": (4, "include/torch_op.h", "    if (is_dense(t)) return t;\n    return copy_in_order_of(t, t);",
                        "    return t;", "forward", "strides|elements are wrong"),
    "ignores the gradient's layout": (4, "include/torch_op.h", "if (is_dense(t) && same_order(t, like)) return t;",
                                      "if (t.numel() >= 0) return t;", "backward", "strides|elements are wrong"),
}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    """On a GPU a mutant that faults would poison this process's CUDA context, and every test after it."""
    monkeypatch.setenv("LABKIT_BACKEND", "host")


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(name, tmp_path, monkeypatch):
    version, file, there, instead, mode, says = MUTANTS[name]
    gelu = edited(tmp_path, monkeypatch, "gelu", version, file, there, instead)
    with pytest.raises((CheckFailed, RuntimeError), match=says):
        labkit.check(gelu, modes=[mode])


def test_the_original_passes_from_the_same_place(tmp_path, monkeypatch):
    labkit.check(edited(tmp_path, monkeypatch, "gelu", 4, "gelu/gelu.cu", "", ""), modes=["forward", "backward"])


def test_a_failure_names_place_input_and_both_values():
    gelu = labkit.load("gelu")

    class Shifted:  # a reference that is off by 0.25
        MODES = {"forward": (("x",), ("y",), lambda x: (gelu.reference.gelu(x) + 0.25,))}
        CASES, SPREAD, LARGEST, DIFFERENTIABLE = [{"shape": (2, 3)}], 1.0, 2.0, []
        DTYPES, tolerance = (torch.float32,), staticmethod(gelu.reference.tolerance)

    with pytest.raises(CheckFailed) as failed:
        labkit.check(dataclasses.replace(gelu, reference=Shifted), versions=[7])
    message = str(failed.value)
    assert "gelu v7 forward, float32, {'shape': (2, 3)}: y" in message
    assert "6 of 6 elements are wrong" in message
    assert "at [0, 0]: x = " in message and "got " in message and "reference " in message


def stub(forward, allowed=(0.0, 0.0)):
    """An operator whose `forward` should transpose, with a reference that allows (ulps, absolute)."""
    def forward_out(x, y, version):
        y.copy_(x.t())

    reference = types.SimpleNamespace(
        MODES={"forward": (("x",), ("y",), lambda x: (x.t(),))}, DTYPES=(torch.float32,), DIFFERENTIABLE=[],
        CASES=[{"shape": (3, 5)}, {"shape": (4, 4), "layout": "offset"}], SPREAD=1.0, LARGEST=2.0,
        tolerance=lambda dtype, version, mode: allowed)
    return types.SimpleNamespace(name="stub", versions={1: "in torch"}, device=torch.device("cpu"), reference=reference,
                                 ops=types.SimpleNamespace(forward=forward, forward_out=forward_out))


def test_an_output_of_another_shape_has_to_be_contiguous():
    labkit.check(stub(lambda x, version: x.t().contiguous()))
    with pytest.raises(CheckFailed, match=r"y has strides \(1, 5\), torch.empty_like gives \(3, 1\)"):
        labkit.check(stub(lambda x, version: x.t()))
    with pytest.raises(CheckFailed, match=r"y has shape \(3, 5\), the reference \(5, 3\)"):
        labkit.check(stub(lambda x, version: x.clone()))


def test_where_nothing_is_allowed_one_ulp_is_too_much():
    def next_number(x, version):
        return torch.nextafter(x.t().contiguous(), torch.tensor(torch.inf))

    with pytest.raises(CheckFailed) as failed:
        labkit.check(stub(next_number))
    message = str(failed.value)
    # x has no element that goes with one of y, so none is shown.
    assert "15 of 15 elements are wrong" in message and "at [0, 0]: got " in message and "allowed error 0" in message
    assert labkit.check(stub(next_number, allowed=(1.0, 0.0)))[1]["forward"].share == 1.0
