"""`labkit.counters`: reading what Nsight Compute prints, and what is said where it cannot count."""

import subprocess
import types

import pytest

import labkit
from labkit import hardware, profiling, report, results

WORK, LEVELS = (hardware._ABOUT[about][0] for about in ("work", "levels"))
HEAD = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'


def printed(launches, metrics=WORK):
    lines = ["==PROF== Connected to process 7", "launched", HEAD.strip()]
    for number, values in enumerate(launches):
        lines += [f'"{number}","7","kernel","{metrics[key]}","x","{value:,}"' for key, value in values.items()]
    return "\n".join(lines) + "\n==PROF== Disconnected\n"


LAUNCH = {"instructions": 268435456, "issue": 51.5, "warps": 75.6, "memory": 29.7, "sectors": 16777216, "requests": 8388608}


def test_the_csv_of_ncu_is_read_launch_by_launch():
    other = {**LAUNCH, "instructions": 1}
    assert profiling.read_csv(printed([LAUNCH, other]), WORK) == [LAUNCH, other]
    assert profiling.read_csv("==ERROR== no permission\n", WORK) == []


@pytest.fixture
def operator(tmp_path, monkeypatch):
    monkeypatch.setattr(profiling.machine, "backend", lambda: "cuda")
    monkeypatch.setattr(profiling.machine, "find_ncu", lambda: "ncu")
    monkeypatch.setattr(report, "here", lambda: "a GPU")
    monkeypatch.setenv("LABKIT_RESULTS", str(tmp_path))
    monkeypatch.setattr(results, "_session", results.Session(lab="04_fused_kernel"))
    return types.SimpleNamespace(name="gelu", backend="cuda", versions={1: "a", 2: "b"})


def answer(monkeypatch, stdout, code=0):
    monkeypatch.setattr(profiling, "run_whole",
                        lambda *arguments, **options: types.SimpleNamespace(stdout=stdout, stderr="", returncode=code))


def test_a_row_a_version(operator, monkeypatch, capsys):
    answer(monkeypatch, printed([LAUNCH, {**LAUNCH, "sectors": 4 * 16777216}]))
    rows = labkit.counters("counters", operator, "forward", 268435456, "bfloat16", "Counted")
    assert [row["version"] for row in rows] == ["v1", "v2"]
    assert [row["instructions an element"] for row in rows] == [32, 32]
    assert [row["sectors a load"] for row in rows] == [2, 8]
    assert results.session().tables["counters"]["rows"] == rows


def test_bytes_an_element_from_each_level(operator, monkeypatch):
    launch = {"l1": 250, "l2": 20, "read": 320, "stored": 40, "written": 640, "memory": 88.0}
    answer(monkeypatch, printed([launch, launch], LEVELS))
    rows = labkit.counters("levels", operator, "forward", (16, 10), "float32", "Levels", about="levels")
    assert rows[0] == {"version": "v1", "bytes an element loaded from L1": 50, "from L2": 4, "from memory": 2,
                       "stored to L2": 8, "to memory": 4, "memory busy, %": 88}
    with pytest.raises(ValueError, match='about is \'speed\'; it takes "work" or "levels"'):
        labkit.counters("levels", operator, "forward", 160, "float32", "Levels", about="speed")


@pytest.mark.parametrize("stdout, code, says", [
    ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", 1, "ERR_NVGPUCTRPERM"),
    (printed([LAUNCH]), 0, "1 launches")])
def test_a_refusal_is_said_and_nothing_is_kept(operator, monkeypatch, capsys, stdout, code, says):
    answer(monkeypatch, stdout, code)
    assert labkit.counters("counters", operator, "forward", 32, "bfloat16", "Counted") == []
    assert says in capsys.readouterr().out and not results.session().tables


def test_a_metric_that_this_gpu_does_not_have_is_named(operator, monkeypatch, capsys):
    """dram__bytes_read is one on a GPU of compute capability 12.0."""
    answer(monkeypatch, printed([LAUNCH, LAUNCH]).replace('"29.7"', '"(!) n/a"'))
    assert labkit.counters("counters", operator, "forward", 32, "bfloat16", "Counted") == []
    assert "of dram__throughput.avg.pct_of_peak_sustained_elapsed it says '(!) n/a'" in capsys.readouterr().out


def test_a_tool_that_hangs_is_given_up(operator, monkeypatch, capsys):
    def hang(*arguments, **options):
        raise subprocess.TimeoutExpired("ncu", options["timeout"])

    monkeypatch.setattr(profiling, "run_whole", hang)
    assert labkit.counters("counters", operator, "forward", 32, "bfloat16", "Counted") == []
    assert "did not count: Command 'ncu' timed out after 180 seconds" in capsys.readouterr().out


def test_without_a_gpu_the_recorded_table_is_asked_for(operator, capsys):
    operator.backend = "host"
    assert labkit.counters("counters", operator, "forward", 32, "bfloat16", "Counted") == []
    assert "there is no GPU here, and nothing is recorded" in capsys.readouterr().out
