"""References of operators whose inputs differ in shape or type: what is drawn, what `check` compares with, what it finds."""

import types

import pytest
import torch

import labkit
from labkit import properties, references
from labkit.cases import draw_inputs, draw_special
from labkit.gpu_counts import Case
from labkit.operator import kernels, python_part
from labkit.verdict import CheckFailed

CPU = torch.device("cpu")


def scaled(x, weight, dtype):
    """The function of the stub: x * weight, and the mean of each row of what that is in `dtype`."""
    y = (x * weight).to(dtype).double()
    return y, y.mean(1)


def stub(forward, tolerance=lambda dtype, version, mode, shape: {"y": (0.0, 0.0), "mean": (0.0, shape[1] * 2.0**-22)}):
    """An operator on a matrix and a vector; y has the matrix's type, mean is float32 where that has 16 bits."""
    def forward_out(x, weight, y, mean, version):
        for out, made in zip((y, mean), forward(x, weight, version)):
            out.copy_(made)

    reference = types.SimpleNamespace(
        MODES={"forward": (("x", "weight"), ("y", "mean"), scaled)}, DIMENSIONS={"weight": (1,)}, WIDE=("mean",),
        DTYPES=(torch.bfloat16, torch.float32), DIFFERENTIABLE=[], SPREAD=1.0, LARGEST=2.0, tolerance=tolerance,
        CASES=[{"shape": (3, 5)}, {"shape": (4, 4), "layout": "offset"}])
    return types.SimpleNamespace(name="stub", versions={1: "in torch"}, device=CPU, reference=reference,
                                 ops=types.SimpleNamespace(forward=forward, forward_out=forward_out))


def right(x, weight, version):
    y = x * weight
    return y, y.float().mean(1)


@pytest.fixture(autouse=True)
def cases_alone(monkeypatch):
    """A stub is no library and not registered."""
    monkeypatch.setattr(properties, "check", lambda *arguments: None)
    monkeypatch.setattr(properties, "check_registration", lambda *arguments: None)


def test_check_knows_shapes_and_types_of_inputs_and_outputs():
    labkit.check(stub(right))


@pytest.mark.parametrize("wrong, says", [
    (lambda x, weight, version: (x, right(x, weight, version)[1]), "stub v1 forward, bfloat16.*: y"),
    (lambda x, weight, version: (x * weight, (x.float() * weight.float()).mean(1) + 1e-3), "bfloat16.*: mean"),
    (lambda x, weight, version: (x * weight, (x * weight).mean(1).float()), "bfloat16.*: mean"),  # rounded to 16 bits
    (lambda x, weight, version: (x * weight, (x * weight).double().mean(1)), "mean is torch.float64 and has to be"),
    (lambda x, weight, version: (x * weight, right(x, weight, version)[1][:, None]), r"mean (\(out\) )?has shape|shape")])
def test_check_finds_what_is_wrong_in_either_output(wrong, says):
    with pytest.raises((CheckFailed, RuntimeError), match=says):
        labkit.check(stub(wrong))


def test_the_tolerance_is_that_of_the_output_and_the_shape():
    asked = []

    def tolerance(dtype, version, mode, shape):
        asked.append((dtype, version, mode, shape))
        return {"y": (0.0, 0.0), "mean": (1.0, 2.0)}

    reference = stub(right, tolerance).reference
    assert references.allowed(reference, "forward", torch.float32, 1, [3, 5]) == [(0.0, 0.0), (1.0, 2.0)]
    assert references.allowed(reference, "forward", torch.float64, 1, (3, 5)) == [(0.0, 0.0), (2.0, 4.0)]
    assert asked == [(torch.float32, 1, "forward", (3, 5)), (torch.float64, 1, "forward", (3, 5))]
    reference.tolerance = lambda dtype, version, mode: (3.0, 0.5)  # of an older kind, for all outputs
    assert references.allowed(reference, "forward", torch.float32, 1, (3, 5)) == [(3.0, 0.5), (3.0, 0.5)]


def test_the_main_input_stands_for_the_case_wherever_it_is():
    reference = stub(right).reference
    inputs = draw_inputs(reference, "forward", torch.bfloat16, CPU, {"shape": (3, 5)}, seed=0)
    assert [(t.shape, t.dtype) for t in inputs] == [((3, 5), torch.bfloat16), ((5,), torch.bfloat16)]
    assert references.main_input(reference, "forward", inputs) is inputs[0]
    y, mean = references.exact_outputs(reference, "forward", inputs)
    assert torch.equal(y, (inputs[0].double() * inputs[1].double()).bfloat16().double()) and mean.shape == (3,)
    of_y, of_mean = references.models(reference, "forward", inputs, [y.shape, mean.shape])
    assert of_y is inputs[0] and (of_mean.shape, of_mean.dtype) == ((3,), torch.float32)


def test_an_input_without_a_dimension_is_large_in_places_and_nowhere_nan():
    x, weight = draw_special(stub(right).reference, "forward", torch.float32, CPU, seed=0)
    assert x[-1, -1].isnan() and weight.isfinite().all() and weight.shape == x.shape[1:]


def test_a_case_for_the_gpu_s_counters_has_inputs_of_these_shapes():
    case = Case("add_norm", 1, (3, 8), "bfloat16", mode="backward", offset=1)
    names = python_part("add_norm", "reference").MODES["backward"][0]
    found = {name: (tuple(t.shape), t.dtype, t.storage_offset()) for name, t in zip(names, case.inputs())}
    assert found["weight"] == ((8,), torch.bfloat16, 1) and found["h"] == ((3, 8), torch.bfloat16, 1)
    assert found["mean"] == found["rstd"] == ((3,), torch.float32, 1)


@pytest.mark.parametrize("name", ["gelu", "copy", "total", "softmax"])
def test_where_nothing_is_said_all_inputs_are_alike(name):
    reference = python_part(name, "reference")
    assert (kernels() / name).is_dir() and not hasattr(reference, "DIMENSIONS")
    for mode, (names, _, _) in reference.MODES.items():
        shape = (4,) * len(reference.CASES[-1]["shape"])
        inputs = draw_inputs(reference, mode, torch.float32, CPU, {"shape": shape}, seed=3)
        generator = torch.Generator().manual_seed(3)
        for input_name, t in zip(names, inputs, strict=True):
            spread, largest = (1.0, 2.0) if input_name == "grad" else (reference.SPREAD, reference.LARGEST)
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            assert torch.equal(t, (drawn * spread).clamp(-largest, largest).float())
        assert references.main_input(reference, mode, inputs) is inputs[-1]
