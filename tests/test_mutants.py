"""`labkit.mutant` and `labkit.plant`: faults put into real kernels, and what finds them."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import labkit
from labkit import Fault
from labkit.operator import source_path
from labkit.verdict import CheckFailed

BARRIER = "    __syncthreads();\n"


def test_a_mutant_is_a_copy_and_the_kernel_stays(session):
    before = source_path("copy").read_bytes()
    broken = labkit.mutant("copy", 1, "if (i < n)", "if (i < n - 1)")
    assert source_path("copy").read_bytes() == before
    assert list(broken.versions) == [1] and broken.source != source_path("copy")
    with pytest.raises(CheckFailed, match="copy v1 forward.*not written"):
        labkit.check(broken)
    labkit.check(labkit.load("copy", version=1, backend="host"))
    assert torch.equal(broken.ops.forward(torch.ones(4), 1)[:3], torch.ones(3))


@pytest.mark.parametrize("version, old, says", [
    (3, "no such text", "stands 0 times in version 3 of transpose.cu"),
    (3, "#pragma unroll\n", "stands 2 times in version 3 of transpose.cu.*Give more of the text"),
    (9, BARRIER, "version is 9; transpose.cu lists 1, 2, 3")])
def test_an_unclear_change_is_refused(version, old, says):
    with pytest.raises(ValueError, match=says):
        labkit.mutant("transpose", version, old, "")


def test_an_unknown_operator_is_refused():
    with pytest.raises(FileNotFoundError, match="no operator 'sum'"):
        labkit.mutant("sum", 1, "a", "b")


def test_a_planted_race_is_found_by_trace_and_by_other_orders(session, capsys):
    rows = labkit.plant("faults", {
        "no barrier": Fault("transpose", 2, BARRIER, "", (64, 64)),
        "a harmless change": Fault("transpose", 2, BARRIER, BARRIER * 2, (64, 64)),
    }, title="Planted")
    race, harmless = rows
    text = source_path("transpose").read_text().splitlines()
    line = next(i for i, s in enumerate(text, 1) if "tile[threadIdx.x][threadIdx.y + k]" in s)
    assert (race["trace finds"], race["at"], race["orders that differ"]) == ("race", f"transpose.cu:{line - 1}", "7 of 7")
    assert (harmless["trace finds"], harmless["at"], harmless["orders that differ"]) == ("nothing", None, "0 of 7")
    assert session().tables["faults"]["rows"] == rows
    assert "thread (1,0,0)" in session().tables["faults_words"]["rows"][0]["in words"]
    assert "1 of 2 faults found" in [note["outcome"] for note in session().notes]
    assert "Planted. Counted, not timed" in capsys.readouterr().out


def test_a_mutant_keeps_its_source_in_trace_and_schedules(session):
    broken = labkit.mutant("transpose", 3, BARRIER, "")
    assert labkit.trace(broken, version=3, size=(40, 40), dtype=torch.float32, show=False).findings
    assert labkit.schedules(broken, version=3, size=(40, 40), dtype=torch.float32, seeds=1)
    assert not labkit.trace("transpose", version=3, size=(40, 40), dtype=torch.float32, show=False).findings
    with pytest.raises(ValueError, match="version is 1; it has 3"):
        labkit.trace(broken, version=1)


STORE = "if (i < n) y[i] = x[i];"


@pytest.mark.parametrize("store, finding, line_is_known", [
    ("y[i + 1] = x[i];", r"writes y\[1000\], of 1000 elements", True),
    ("y[i * 100000000000ll] = x[i];", "follows a pointer to far outside of every array", True),
    ("y[i / (n - n)] = x[i];", "integer division by zero", False)])
def test_what_would_end_the_process_is_a_finding_of_trace(store, finding, line_is_known, session):
    broken = labkit.mutant("copy", 1, STORE, store)  # which does not launch it
    found = labkit.trace(broken, 1, size=1000, dtype=torch.float32, show=False)
    texts = "\n".join(map(str, found.findings))
    line = next(i for i, text in enumerate(broken.source.read_text().splitlines(), 1) if store in text)
    assert re.search((rf"copy\.cu:{line}: .*" if line_is_known else "") + finding, texts), texts
    assert found.ended_early == ("y[i + 1]" not in store)
    again = labkit.trace("copy", 1, size=1000, dtype=torch.float32, show=False)
    assert again.findings == [] and not again.ended_early


def test_a_store_just_past_the_end_does_no_harm_under_schedules(session):
    broken = labkit.mutant("copy", 1, STORE, "y[i + 1] = x[i];")
    assert labkit.schedules(broken, 1, size=1000, dtype=torch.float32) == []


def test_a_launch_that_the_trace_had_to_end_is_not_run_in_other_orders(session):
    row, = labkit.plant("wild", {"far": Fault("copy", 1, STORE, "y[i * 100000000000ll] = x[i];", (1000,))}, "Wild")
    assert row["orders that differ"] == "not run" and row["trace finds"] != "nothing"
    with pytest.raises(ValueError, match="faults is empty"):
        labkit.plant("none", {}, "None")
    with pytest.raises(ValueError, match="has to change something"):
        labkit.mutant("copy", 1, STORE, STORE)


def test_threads_that_plant_the_same_fault_at_a_time_get_the_same_operator():
    with ThreadPoolExecutor(4) as pool:
        planted = list(pool.map(lambda _: labkit.mutant("copy", 1, "y[i] = x[i]", "y[i] = x[n - 1 - i]"), range(4)))
    assert all(operator is planted[0] for operator in planted)
    assert planted[0](torch.arange(3.0), version=1).tolist() == [2, 1, 0]
