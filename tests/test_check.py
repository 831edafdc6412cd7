"""`labkit.check` must reject wrong kernels: each mutant is the GeLU operator with one fault that people ship."""

import dataclasses
import types

import pytest
import torch
from edited_kernels import edited

import labkit
from labkit import REPOSITORY, Shipped, build, killing, properties
from labkit.killing import Survived
from labkit.verdict import CHECKS, CheckFailed

OF_VECTORS = "{\n        const int64_t i = first + j * THREADS;\n"
REST = "rest_after_vectors<Mode, T>(a, n);\n}"
# name: (version, file, what stands there, what the mutant has instead, mode, the check that finds it). Lab 07 has more of them.
MUTANTS = {
    "drops the second vector": (5, "gelu/gelu.cu", f"j < VECTORS; ++j) {OF_VECTORS}", f"j < 1; ++j) {OF_VECTORS}", "forward",
                                "unwritten"),
    "stores before the start": (4, "gelu/gelu.cu", REST, REST[:-1] + "    if (n > 1 && i == 0) a.out[0][-1] = a.out[0][0];\n}",
                                "forward", "outside"),
    "a tanh that is off by a hundredth": (6, "gelu/gelu.cu", "return approx_tanh(z);", "return approx_tanh(1.01f * z);",
                                          "forward", "values"),
    "forgets the gradient": (7, "gelu/gelu.cu", "out[0] = in[0] * in[1];", "out[0] = in[1];", "backward_saved", "values"),
    "squares in half precision": (4, "gelu/gelu.cu", "const F u = x * x;",
                                  "const F u = F(__half2float(__float2half_rn(float(x * x))));", "forward", "values"),
    "ignores the gradient's layout": (4, "include/torch_op.h", "if (is_dense(t) && same_order(t, like)) return t;",
                                      "if (t.numel() >= 0) return t;", "backward", "values"),
}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    """On a GPU a mutant that faults would poison this process's CUDA context, and every test after it."""
    monkeypatch.setenv("LABKIT_BACKEND", "host")
    monkeypatch.syspath_prepend(str(REPOSITORY / "labs"))


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(name, tmp_path, monkeypatch):
    version, file, there, instead, mode, by = MUTANTS[name]
    gelu = edited(tmp_path, monkeypatch, "gelu", version, file, there, instead)
    with pytest.raises(CheckFailed) as failed:
        labkit.check(gelu, modes=[mode])
    assert failed.value.check == by


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


def stub(forward, allowed=(0.0, 0.0), dtype=torch.float32):
    """An operator whose `forward` should transpose, with a reference that allows (ulps, absolute)."""
    def forward_out(x, y, version):
        y.copy_(x.t())

    reference = types.SimpleNamespace(
        MODES={"forward": (("x",), ("y",), lambda x: (x.t(),))}, DTYPES=(dtype,), DIFFERENTIABLE=[],
        CASES=[{"shape": (3, 5)}, {"shape": (4, 4), "layout": "offset"}], SPREAD=1.0, LARGEST=2.0,
        tolerance=lambda dtype, version, mode: allowed)
    return types.SimpleNamespace(name="stub", versions={1: "in torch"}, device=torch.device("cpu"), reference=reference,
                                 ops=types.SimpleNamespace(forward=forward, forward_out=forward_out))


def cases_alone(monkeypatch):
    """For a stub, which is no library and not registered."""
    monkeypatch.setattr(properties, "check", lambda *arguments: None)
    monkeypatch.setattr(properties, "check_registration", lambda *arguments: None)


def test_an_output_of_another_shape_has_to_be_contiguous(monkeypatch):
    cases_alone(monkeypatch)
    labkit.check(stub(lambda x, version: x.t().contiguous()))
    with pytest.raises(CheckFailed, match=r"y has strides \(1, 5\), torch.empty_like gives \(3, 1\)"):
        labkit.check(stub(lambda x, version: x.t()))
    with pytest.raises(CheckFailed, match=r"y has shape \(3, 5\), the reference \(5, 3\)"):
        labkit.check(stub(lambda x, version: x.clone()))


def test_where_nothing_is_allowed_one_ulp_is_too_much(monkeypatch):
    cases_alone(monkeypatch)

    def next_number(x, version):
        return torch.nextafter(x.t().contiguous(), torch.tensor(torch.inf))

    with pytest.raises(CheckFailed) as failed:
        labkit.check(stub(next_number))
    message = str(failed.value)
    # x has no element that goes with one of y, so none is shown.
    assert "15 of 15 elements are wrong" in message and "at [0, 0]: got " in message and "allowed error 0" in message
    assert labkit.check(stub(next_number, allowed=(1.0, 0.0)))[1]["forward"].share == 1.0


def test_of_float64_twice_is_allowed_since_the_reference_is_rounded_too(monkeypatch):
    cases_alone(monkeypatch)

    def far(ulps):
        def forward(x, version):
            y = x.t().contiguous()
            for _ in range(ulps):
                y = torch.nextafter(y, torch.tensor(torch.inf, dtype=y.dtype))
            return y
        return forward

    for dtype, allowed in ((torch.float32, 3), (torch.float64, 6)):
        operator = stub(far(allowed), (3.0, 0.0), dtype)
        assert labkit.check(operator)[1]["forward"] == (1.0, allowed)
        with pytest.raises(CheckFailed, match="values|elements are wrong"):
            labkit.check(stub(far(allowed + 1), (3.0, 0.0), dtype))


def test_every_check_has_a_fault_that_it_finds_and_every_fault_a_check():
    import faults

    assert len(faults.SHIPPED) >= 15
    assert {fault.found_by for fault in faults.SHIPPED.values()} == set(CHECKS)


def test_a_fault_is_found_by_the_check_that_is_named_or_survives(session, capsys):
    import faults

    found = {what: faults.SHIPPED[what] for what in ("remembers results by address", "names no stream")}
    rows = labkit.kills("kills", found, "Two faults", times=1)
    assert [(row["one allclose"], row["found by"], row["and by"]) for row in rows] == [
        ("passes", "again", ""), ("passes", "stream", "")]
    tables = session().tables
    assert set(tables) == {"kills", "kills_words", "kills_checks"}
    alone = {row["check"]: (row["finds"], row["alone"]) for row in tables["kills_checks"]["rows"]}
    assert alone["again"] == alone["stream"] == (1, 1) and alone["values"] == (0, 0)
    assert "gives an old result" in tables["kills_words"]["rows"][0]["in words"]
    assert "2 of 2 faults found; the kernels as they are pass 1 of 1 times" in capsys.readouterr().out


def test_a_fault_that_another_check_finds_and_a_kernel_that_does_not_pass_are_told(session, monkeypatch):
    fault = Shipped("copy", 5, "old", "new", "values")
    said = {"old": {"faults": {"special": "a NaN is lost"}, "one allclose": "passes"}, "": {"faults": {"order": "other bits"}}}
    monkeypatch.setattr(killing, "judged", lambda fault, backend, seeds=range(1): said[fault.old])
    with pytest.raises(Survived, match="'hides NaN' is not found by 'values'; found by special\n"
                                       "copy v5 as it is does not pass: {'order': 'other bits'}"):
        labkit.kills("kills", {"hides NaN": fault}, "One", times=1)
    assert session().tables["kills"]["rows"][0]["found by"] == "not found"
    with pytest.raises(ValueError, match="'hides NaN' is to be found by 'luck'; there are launch, unwritten"):
        labkit.kills("kills", {"hides NaN": dataclasses.replace(fault, found_by="luck")}, "One", times=1)


def test_what_a_fault_brought_is_told_without_this_machines_folders():
    said = "could not build copy:\n/tmp/x/copy.cu(3): error: no y, see kernels/include/torch_op.h and …/labkit/build.py\nmore"
    assert killing._first_words(said) == ("could not build copy: copy.cu(3): error: no y, see kernels/include/torch_op.h and "
                                          "…/labkit/build.py")


def test_a_fault_that_is_none_survives_and_one_that_ends_its_process_is_told(session):
    store = "if (i < n) y[i] = x[i];"
    harmless = Shipped("copy", 1, store, "if (n > i) y[i] = x[i];", "values")
    with pytest.raises(Survived, match="'turned round' is not found by 'values'; found by none"):
        labkit.kills("kills", {"turned round": harmless}, "Harmless", times=1)
    with pytest.raises(build.BuildError, match="error: .*no_function"):
        killing.judged(dataclasses.replace(harmless, new="no_function(x);"), "host")
    with pytest.raises(RuntimeError, match="no operator 'no_such'"):  # of the harness, and nothing that was found
        killing.judged(dataclasses.replace(harmless, operator="no_such"), "host")
    ends = killing.judged(Shipped("copy", 1, store, "__builtin_trap();", "launch"), "host")
    assert ends == {"faults": {"launch": "it ended the process by signal 4"}, "one allclose": "fails"}


@pytest.mark.parametrize("arguments, error, says", [
    (("softmax",), TypeError, "operator is 'softmax'; it has to be what labkit.load returns"),
    (([8],), ValueError, r"versions is \[8\]; gelu has 1, 2, 3"), (([],), ValueError, r"versions is \[\]; gelu has 1"),
    ((6,), TypeError, "versions is 6; it has to be a list; gelu has 1"),
    ((None, "forward"), TypeError, "modes is 'forward'; it has to be a list; gelu has forward, forward_derivative"),
    ((None, ["forwards"]), ValueError, r"modes is \['forwards'\]; gelu has forward"),
    ((None, None, ["float32"]), ValueError, r"dtypes is \['float32'\]; gelu has torch.float16"),
    ((None, None, [torch.int32]), ValueError, r"dtypes is \[torch.int32\]; gelu has torch.float16")])
def test_arguments_that_cannot_be_are_told_with_those_that_can(arguments, error, says):
    operator = () if arguments[0] == "softmax" else (labkit.load("gelu"),)
    with pytest.raises(error, match=f"^check: {says}"):
        labkit.check(*operator, *arguments)


@pytest.mark.parametrize("change, says", [
    ({"CASES": []}, "CASES is empty"), ({"DTYPES": ()}, "DTYPES is empty"), ({"MODES": {}}, "MODES is empty"),
    ({"CASES": [(4,)]}, r"CASES\[0\] is \(4,\); it has to be a dict with a shape"),
    ({"CASES": [{"shape": (4,)}, {"shape": 4}]}, r"CASES\[1\] is {'shape': 4}"),
    ({"DIFFERENTIABLE": None}, "there is no DIFFERENTIABLE"), ({"tolerance": None}, "there is no tolerance"),
    ({"MODES": {"forward": (("x",), ("y",), lambda x: x)}}, "returned a Tensor; it has to return a tuple of 1: y"),
    ({"MODES": {"forward": (("x",), ("y",), lambda x: (x, x))}}, "returned 2 outputs; it has to return a tuple of 1: y")])
def test_a_reference_module_that_lacks_something_is_told(change, says):
    gelu = labkit.load("gelu")
    has = {**vars(gelu.reference), **change}
    reference = types.SimpleNamespace(**{name: what for name, what in has.items() if what is not None})
    with pytest.raises(ValueError, match=f"reference.py: .*{says}"):
        labkit.check(dataclasses.replace(gelu, reference=reference), [4])


def test_an_operator_that_says_so_may_depend_on_the_order_of_threads(session):
    sums = labkit.mutant(
        "row_sum", 1, "part[t] = sum_of_thread(x, cols);",
        "part[t] = 0; const auto mine = sum_of_thread(x, cols); __syncthreads(); atomicAdd(&part[0], mine);")
    with pytest.raises(CheckFailed) as failed:
        labkit.check(sums, modes=["forward"])
    assert failed.value.check == "order"
    allowed = types.SimpleNamespace(**vars(sums.reference), REPEATABLE=False)
    labkit.check(dataclasses.replace(sums, reference=allowed), modes=["forward"])
