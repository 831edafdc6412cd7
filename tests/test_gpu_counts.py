"""`labkit.agreement`: the trace's counts beside the GPU's, and that the recorded comparison still holds."""

import re
import subprocess
import types

import pytest
import torch

import labkit
from labkit import gpu_counts, profiling, report, results
from labkit.gpu_counts import Case, Rival

CASES = [Case("copy", 2, (4096,)), Case("transpose", 3, (96, 64)),
         Case("copy", 1, (999,), "bfloat16", offset=1, note="shifted")]


def counted(case, **wrong):
    """What a GPU that agrees with the trace would count for a case, but for `wrong`: {quantity: by how much}."""
    traced = gpu_counts.traced(case)
    gpu = {}
    for key, (metrics, of_trace) in gpu_counts._QUANTITIES.items():
        gpu |= dict.fromkeys(metrics, 0.0)
        gpu[metrics[0]] = float(of_trace(traced) + wrong.get(key.replace(" ", "_"), 0))
    return gpu


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_counts.machine, "backend", lambda: "cuda")
    monkeypatch.setattr(report, "here", lambda: "a GPU")
    monkeypatch.setattr(results, "_session", results.Session(lab="11_trace"))
    return results.session


def test_one_number_where_they_agree_and_both_where_not(gpu, monkeypatch):
    monkeypatch.setattr(gpu_counts, "count", lambda metrics, cases: [counted(cases[0]),
                                                                     counted(cases[1], load_sectors=5, bank_conflicts=2),
                                                             counted(cases[2])])
    summary = labkit.agreement("agreement", CASES, "Trace and GPU")
    assert {row["count"]: (row["the same in"], row["of"]) for row in summary} == {
        "load requests": (3, 3), "load sectors": (2, 3), "store requests": (3, 3), "store sectors": (3, 3),
        "shared wavefronts": (1, 1), "bank conflicts": (0, 1)}
    rows = {row["kernel"]: row for row in gpu().tables["agreement"]["rows"]}
    assert list(rows) == ["copy v2", "transpose v3", "copy v1, shifted"]
    assert rows["copy v2"] == {"kernel": "copy v2", "input": "4,096 float32", "load requests": "128", "load sectors": "1,024",
                               "store requests": "128", "store sectors": "1,024"}
    assert rows["transpose v3"]["load sectors"] == "768 / 773"
    assert rows["copy v1, shifted"]["load sectors"] == "94" and rows["copy v1, shifted"]["store sectors"] == "63"
    shared, = gpu().tables["agreement_shared"]["rows"]
    assert shared["bank conflicts"] == "0 / 2"


def test_a_program_under_the_profiler_launches_each_case_in_a_range_of_its_name(monkeypatch):
    """As it runs on a GPU, but for the GPU: nothing else may be launched between start and stop."""
    log = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for name in ("start", "stop"):
        monkeypatch.setattr(torch.cuda.profiler, name, lambda name=name: log.append(name))
    nvtx = types.SimpleNamespace(rangePushA=log.append, rangePop=lambda: log.append("pop"))
    monkeypatch.setattr(torch.cuda.nvtx, "_nvtx", nvtx)
    real = gpu_counts.call_of

    def told(case, inputs):
        call = real(case, inputs)
        return lambda: log.append(case) or call()

    monkeypatch.setattr(gpu_counts, "call_of", told)
    cases = [Case("copy", 2, (64,)), Rival("gelu", "native", (8, 4), "bfloat16")]
    given = gpu_counts.program(cases)
    assert given[:2] == ["-m", "labkit.gpu_counts"]
    gpu_counts._launch(list(map(gpu_counts.case_of, given[2:])))
    assert log == [word for case in cases for word in ("start", gpu_counts.named(case), case, "pop", "stop")]


def test_where_nothing_is_counted_the_recorded_tables_are_shown(gpu, monkeypatch, capsys):
    def refuse(*arguments, **options):
        raise subprocess.TimeoutExpired("ncu", 180)

    monkeypatch.setattr(profiling.machine, "find_ncu", lambda: "ncu")
    monkeypatch.setattr(profiling, "run_whole", refuse)
    shown = []
    monkeypatch.setattr(report, "show_table", lambda table, caption=None, figure=False: shown.append((table["title"], caption)))
    assert labkit.agreement("agreement", CASES, "Trace and GPU") == [] and not gpu().tables
    assert len(shown) == 3 and all("Nsight Compute did not count" in caption for _, caption in shown)
    assert labkit.agreement("no such table", CASES, "Elsewhere") == []
    assert "nothing is recorded" in capsys.readouterr().out


@pytest.mark.parametrize("cases", [[], [("copy", 1, (4,))], [Case("copy", 9, (4,))], [Case("copy", 1, (4,), "f32")],
                                   [Case("copy", 1, (4,), mode="sideways")], [Case("copy", 1, (4,)), Case("copy", 1, (8,))]])
def test_cases_that_make_no_sense_are_refused_without_a_gpu_too(cases, monkeypatch):
    monkeypatch.setattr(gpu_counts.machine, "backend", lambda: "host")
    with pytest.raises(ValueError, match="agreement: "):
        labkit.agreement("agreement", cases, "Trace and GPU")


def test_the_recorded_counts_of_the_trace_are_those_of_this_machine():
    """The counts do not depend on machine or compiler: what was traced beside an H200 is traced here again."""
    cell = next(cell for cell in labkit.sources.code_cells(labkit.sources.notebook("11_trace")) if "labkit.agreement" in cell)
    cases = []
    exec(cell, {"Case": Case, "labkit": types.SimpleNamespace(agreement=lambda name, given, title: cases.extend(given))})
    rows = {**{row["kernel"]: row for row in results.recorded("11_trace", "agreement").table["rows"]}}
    for row in results.recorded("11_trace", "agreement_shared").table["rows"]:
        rows[row["kernel"]] |= row
    assert len(cases) == len(rows) >= 12
    for case in cases:
        traced = gpu_counts.traced(case)
        for key, (_, of_trace) in gpu_counts._QUANTITIES.items():
            recorded = rows[case.label].get(key, "0").split(" / ")[0]
            assert of_trace(traced) == int(recorded.replace(",", "")), (case.label, key)


def test_the_chapter_explains_each_difference_that_is_recorded():
    text = (labkit.REPOSITORY / "book" / "11_trace.md").read_text(encoding="utf-8")
    for name in ("agreement", "agreement_shared"):
        for row in results.recorded("11_trace", name).table["rows"]:
            if any(" / " in str(value) for value in row.values()):
                operator, version, note = re.fullmatch(r"(\w+) v(\d+)(?:, (.*))?", row["kernel"]).groups()
                assert f"`{operator}` version {version}{f', {note}' if note else ''}.**" in text, row["kernel"]
