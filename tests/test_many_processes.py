"""Many processes beside one: what counts as the same losses, a run that is killed, and what is made of several GPUs.

The real program runs in lab 10, with gloo on the CPU; here others stand in for it.
"""

import json
import os
import textwrap
import time

import psutil
import pytest

import labkit
from labkit import REPOSITORY, many_processes, scaling_table, torchrun
from labkit.output_errors import WrongResult

PROGRAM = REPOSITORY / "tests" / "interrupted_program.py"
RIGHT = [1 / (step + 1) for step in range(80)]


def program(folder, text):
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    return path


# -- same losses -----------------------------------------------------------------------------------------------

def trained(losses):
    """In place of a run: losses[way], whatever else is asked for."""
    return lambda program, device, precision, way, processes, steps, folder: losses[way]


def test_runs_that_agree_are_shown_with_their_largest_difference(session, monkeypatch):
    shifted = [loss * (1 + 3e-15) for loss in RIGHT[:8]]
    monkeypatch.setattr(many_processes, "_losses", trained({"plain": RIGHT[:8], "ddp": RIGHT[:8], "fsdp": shifted}))
    assert labkit.same_losses("same", PROGRAM, "Beside one", steps=8)["fsdp"] == shifted
    rows = session().tables["same"]["rows"]
    assert [row["shared by"] for row in rows] == ["ddp, 2 processes", "fsdp, 2 processes"]
    assert [row["largest difference"] for row in rows] == [0.0, pytest.approx(3e-15, rel=0.1)]
    assert {row["through"] for row in rows} == {"gloo"} and session().notes[0]["kind"] == "check"


@pytest.mark.parametrize("wrong", [[*RIGHT[:7], RIGHT[7] * (1 + 1e-9)], [*RIGHT[:7], float("nan")]], ids=["off", "NaN"])
def test_a_run_that_differs_is_found(session, monkeypatch, wrong):
    monkeypatch.setattr(many_processes, "_losses", trained({"plain": RIGHT[:8], "ddp": RIGHT[:8], "fsdp": wrong}))
    with pytest.raises(WrongResult, match="same_losses: fsdp on cpu in float64 differs from one process by"):
        labkit.same_losses("same", PROGRAM, "Beside one", steps=8)
    assert not session().tables


@pytest.mark.parametrize("step, accepted", [(many_processes.COMPARED["bfloat16"] - 1, False),
                                            (many_processes.COMPARED["bfloat16"], True)])
def test_in_16_bits_the_first_steps_are_compared_and_in_float64_all(session, monkeypatch, step, accepted):
    monkeypatch.setattr(many_processes.machine, "backend", lambda: "cuda")
    monkeypatch.setattr(many_processes.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(many_processes, "here", lambda: "a simulated machine")
    off = [loss * 1.02 if number >= step else loss for number, loss in enumerate(RIGHT)]
    monkeypatch.setattr(many_processes, "_losses", lambda program, device, precision, way, processes, steps, folder:
                        off if (precision, way) == ("bfloat16", "fsdp") else RIGHT)
    if accepted:
        labkit.same_losses("same", PROGRAM, "Beside one")
        rows = session().tables["same"]["rows"]
        assert [row["steps compared"] for row in rows] == [80, 80, 80, 80, 20, 20]
        assert {row["largest difference"] for row in rows} == {0.0}
    else:
        with pytest.raises(WrongResult, match="fsdp on cuda in bfloat16 differs from one process by 2.0e-02"):
            labkit.same_losses("same", PROGRAM, "Beside one")


# -- a run that is killed --------------------------------------------------------------------------------------

@pytest.fixture
def killed(session, monkeypatch):
    """killed(fault): `survives` on the stand-in."""
    def call(fault=""):
        monkeypatch.setenv("FAULT", fault)
        return labkit.survives("killed", PROGRAM, RIGHT, "Killed twice")

    return call


def test_a_run_is_killed_twice_and_goes_on_from_its_checkpoints(killed, session):
    first, second, end = killed()
    assert first["step reached"] >= 25 and first["went on from"] == 10 * ((first["step reached"] + 1) // 10)
    assert second["step reached"] >= 45 and second["went on from"] == 10 * ((second["step reached"] + 1) // 10)
    twice = sum(row["step reached"] + 1 - row["went on from"] for row in (first, second))
    assert end["losses that differ"] == 0 and end["step reached"] == 79
    assert twice <= end["steps done twice"] <= twice + 4  # it may have written some steps more before it was dead
    assert session().tables["killed"]["rows"] == [first, second, end]


@pytest.mark.parametrize("fault, words", [("other", r"the losses of the steps \[.*79\] differ"), ("anew", "began anew")])
def test_a_run_that_goes_on_wrongly_is_found(killed, fault, words):
    with pytest.raises(WrongResult, match=words):
        killed(fault)


# -- starting and ending ---------------------------------------------------------------------------------------

def test_what_a_program_says_last_is_told_where_it_fails(tmp_path):
    path = program(tmp_path, 'raise ValueError("no such thing")')
    with torchrun.started(path, 1, [], tmp_path) as run:
        with pytest.raises(torchrun.RunFailed, match=r"(?s)ended with 1.*no such thing"):
            run.finish()
    with torchrun.started(path, 1, [], tmp_path) as run:
        with pytest.raises(torchrun.RunFailed, match="was to reach step 3, and it ended"):
            run.wait_until(lambda events: False, "step 3")


TRACES = """[rank1]: Traceback (most recent call last):
[rank1]:   File "labs/train.py", line 1, in <module>
[rank0]: Traceback (most recent call last):
""" + "".join(f"[rank1]:   File \"torch/module.py\", line {k}, in forward\n[rank1]:     y = f(x)\n" for k in range(60)) + """\
[rank0]:   File "labs/train.py", line 1, in <module>
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
[rank0]: RuntimeError: Connection reset by peer
E1130 torch/distributed/elastic: failed (exitcode: 1)
"""


def test_of_many_processes_words_the_first_error_is_told_however_deep_it_came_from():
    told = torchrun.first_error(TRACES)
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB." in told and "line 59" in told
    assert "reset by peer" not in told and len(told) < 1000
    of_one = "  File x\nValueError: of one"
    assert torchrun.first_error(f"Traceback (most recent call last):\n{of_one}\n") == of_one
    assert torchrun.first_error("killed") == "killed"
    torchruns = 'Traceback (most recent call last):\n  File "<frozen runpy>", line 198, in _run_code\nChildFailedError\n'
    assert torchrun.first_error(f"train.py: no such width\nE1130 failed\n{torchruns}").startswith("train.py: no such")
    assert "reset by peer" not in (told := torchrun.first_error(TRACES + torchruns)) and "OutOfMemoryError" in told


def test_where_a_gpus_memory_does_not_suffice_a_start_gives_nothing(tmp_path):
    deep = """
        def f(k):
            if k == 0:
                raise MemoryError("torch.OutOfMemoryError: none left")
            return f(k - 1)
        f(100)
    """
    assert scaling_table._started(program(tmp_path, deep), 1, 16, 3) is None
    with pytest.raises(torchrun.RunFailed, match="no such way"):
        scaling_table._started(program(tmp_path, "raise ValueError('no such way')"), 1, 16, 3)


def test_a_program_that_does_not_end_is_ended_with_all_that_it_has_started(tmp_path, monkeypatch):
    monkeypatch.setattr(torchrun, "LIMIT", 2)
    path = program(tmp_path, """
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open(sys.argv[1], "w").write(str(child.pid))
        time.sleep(600)
    """)
    with torchrun.started(path, 1, [str(tmp_path / "child")], tmp_path) as run:
        with pytest.raises(torchrun.RunFailed, match="did not end in 2 s"):
            run.finish()
        child = int((tmp_path / "child").read_text())
        assert psutil.pid_exists(child) and len(run.workers()) == 1
    for _ in range(100):
        if not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.05)
    else:
        pytest.fail("its child still runs")


def test_a_log_is_read_up_to_the_line_that_is_being_written(tmp_path):
    path = program(tmp_path, "pass")
    with torchrun.started(path, 1, [], tmp_path) as run:
        assert run.events() == []
        run.log.write_text('{"step": 0, "loss": 2.0}\n{"step": 1, "loss": 1.5}\n{"step": 1, "loss": 1.5}\n{"step": 2, "lo')
        assert torchrun.losses(run.events()) == {0: [2.0], 1: [1.5, 1.5]}


def test_what_a_run_builds_is_no_news_of_the_lab(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_LOG", str(tmp_path / "labs.jsonl"))
    path = program(tmp_path, 'import os, labkit\nassert "LABKIT_LOG" not in os.environ')
    with torchrun.started(path, 1, [], tmp_path) as run:
        run.finish()


# -- several GPUs ----------------------------------------------------------------------------------------------

def report(processes, ways, ms, sequences=16, profiled=()):
    kinds = ("weak",) if processes == 1 else ("weak", "strong")
    return {"processes": processes, "nccl": "2.28.9", "sum": {"bytes": 3 * 10**9, "ms": [9.0, 10.0, 12.0]}, "runs": [
        {"way": way, "kind": kind, "sequences": sequences * (processes if kind == "weak" else 1),
         "tokens": 1024 * sequences * (processes if kind == "weak" else 1), "ms": ms[way, kind], "bytes": 3 * 2**30,
         "profiled": list(profiled), "spans": {}} for way in ways for kind in kinds]}


def test_scaling_is_tokens_a_second_over_those_of_as_many_single_gpus():
    one = [report(1, ["plain"], {("plain", "weak"): ms}) for ms in ([99.0, 100.0, 101.0], [104.0] * 3)]
    two = [report(2, ["ddp", "fsdp"], {("ddp", "weak"): [125.0] * 3, ("ddp", "strong"): [75.0] * 3,
                                       ("fsdp", "weak"): [200.0] * 3, ("fsdp", "strong"): [102.5] * 3})] * 2
    rows = {(row["shared by"], row["GPUs"], row["scaling"]): row for row in scaling_table.scaling_rows({1: one, 2: two})}
    alone = rows["one alone", 1, "–"]
    assert alone["ms a step"] == 102.5 and alone["starts, ms"] == "100.0–104.0" and alone["of GPUs × one, %"] == 100.0
    assert alone["tokens/s"] == round(16 * 1024 / 0.1025) and alone["memory, GiB"] == 3.0
    assert rows["ddp", 2, "weak"]["of GPUs × one, %"] == round(100 * 102.5 / 125, 1)
    assert rows["ddp", 2, "strong"]["of GPUs × one, %"] == round(100 * 102.5 / 150, 1)
    assert rows["fsdp", 2, "weak"]["sequences"] == 32 and rows["fsdp", 2, "strong"]["of GPUs × one, %"] == 50.0


def test_where_memory_ran_out_the_rows_are_empty():
    times = {(way, kind): [50.0] * 3 for way in ("ddp", "fsdp") for kind in ("weak", "strong")}
    rows = scaling_table.scaling_rows({1: None, 2: [report(2, ["ddp", "fsdp"], times)]})
    assert rows[0]["ms a step"] is None and len(rows) == 5
    assert rows[1]["ms a step"] == 50.0 and rows[1]["of GPUs × one, %"] is None  # of what, nobody knows


def test_waiting_is_the_median_over_all_processes_and_steps():
    steps = [{"step": 100.0, "communicating": 20.0, "exposed": 2.0, "idle": 7.0},
             {"step": 110.0, "communicating": 30.0, "exposed": 15.0, "idle": 1.0},
             {"step": 105.0, "communicating": 40.0, "exposed": 4.0, "idle": 3.0}]
    times = {(way, kind): [1.0] * 3 for way in ("ddp", "fsdp") for kind in ("weak", "strong")}
    first, *others = scaling_table.waiting_rows({1: None, 2: [report(2, ["ddp", "fsdp"], times, profiled=steps)]})
    assert first == {"shared by": "ddp, 2 GPUs, weak", "steps": 3, "a step, profiled, ms": 105.0, "NCCL runs, ms": 30.0,
                     "alone, ms": 4.0, "behind other kernels, %": 90.0, "no kernel runs, ms": 3.0}
    assert len(others) == 3


def test_what_each_gpu_sends_is_two_less_a_share_of_the_bytes():
    times = {(way, kind): [1.0] * 3 for way in ("plain", "ddp") for kind in ("weak", "strong")}
    rows = scaling_table.sum_rows({1: [report(1, ["plain"], times)], 2: [report(2, ["ddp"], times)] * 2,
                                   4: [report(4, ["ddp"], times)], 8: None})
    assert [row["GPUs"] for row in rows] == [2, 4] and {row["gradients, GB"] for row in rows} == {3.0}
    assert [row["sent by each, GB/s"] for row in rows] == [300, 450] and {row["ms"] for row in rows} == {10.0}


def event(name, start, duration):
    return {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": duration}


def test_a_trace_says_how_long_nccl_runs_and_how_long_alone(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "labs"))
    import scaling

    found = scaling.communication({"traceEvents": [
        event("gemm", 1000, 400), event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", 1300, 300),
        event("gelu", 1400, 100), event("gemm", 1800, 200), event("ncclDevKernel_AllGather_RING_LL", 1900, 200),
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 9999}]})
    # Something computes from 1000 to 1500 and 1800 to 2000; NCCL runs from 1300 to 1600 and 1900 to 2100, 100 of each alone.
    assert found["step"] == pytest.approx(1.1) and found["communicating"] == pytest.approx(0.5)
    assert found["exposed"] == pytest.approx(0.2) and found["idle"] == pytest.approx(0.2)
    assert set(found["spans"]) == {"compute", "AllReduce", "AllGather"} and len(found["spans"]["compute"]) == 2


@pytest.mark.parametrize("most, expected",
                         [(9, [[0, 1], [2, 3], [3.5, 4], [8, 9]]), (3, [[0, 1], [2, 4], [8, 9]]), (1, [[0, 9]])])
def test_a_lane_of_too_many_spans_closes_its_shortest_gaps(most, expected):
    assert scaling_table.closed([[0, 1], [2, 3], [3.5, 4], [8, 9]], most) == expected


def test_what_links_the_gpus_is_in_nvidia_smis_words(monkeypatch):
    shown = "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\x1b[0m\nGPU0\t X \tNV18\t0-31\nGPU1\tNV18\t X \t0-31"
    monkeypatch.setattr(scaling_table.machine, "output", lambda *words: shown)
    assert scaling_table.link() == "NV18"
    monkeypatch.setattr(scaling_table.machine, "output", lambda *words: None)
    assert "does not say" in scaling_table.link()


def test_with_one_gpu_nothing_is_started(session, monkeypatch, capsys):
    monkeypatch.setattr(scaling_table.machine, "backend", lambda: "cuda")
    monkeypatch.setattr(scaling_table.torch.cuda, "device_count", lambda: 1)
    assert labkit.scale("scaling", PROGRAM, 16, "Scaling") == []
    assert "this machine has one GPU, and nothing is recorded" in capsys.readouterr().out


def test_scaling_starts_each_number_of_gpus_in_turns(session, monkeypatch, tmp_path, capsys):
    ways = {1: ["plain"], 2: ["ddp", "fsdp"]}
    times = {(way, kind): [10.0, 11.0, 12.0] for way in ("plain", "ddp", "fsdp") for kind in ("weak", "strong")}
    begun = []

    def start(program, count, sequences, steps):
        begun.append(count)
        return report(count, ways[count], times, sequences)

    monkeypatch.setattr(scaling_table.machine, "backend", lambda: "cuda")
    monkeypatch.setattr(scaling_table.torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(scaling_table, "here", lambda: "a simulated machine")
    monkeypatch.setattr(scaling_table, "link", lambda: "NV18")
    monkeypatch.setattr(scaling_table, "_started", start)
    for variable in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    monkeypatch.setenv("NCCL_VERSION", "2.28.3-1")
    rows = labkit.scale("scaling", PROGRAM, 4, "Scaling")
    assert begun == [1, 2, 1, 2, 1, 2] and len(rows) == 5
    assert session().tables["scaling"]["title"] == "Scaling; NCCL 2.28.9, linked by NV18, NCCL_NVLS_ENABLE=0"


def test_the_program_of_scaling_measures_each_way_alone_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "labs"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    import scaling

    output = tmp_path / "scaling.json"
    scaling.main(["--device", "cpu", "--ways", "plain", "ddp", "--steps", "3", "--output", str(output)])
    found = json.loads(output.read_text())
    assert found["sum"]["bytes"] == 4 * found["runs"][0]["weights"] > 0 and min(found["sum"]["ms"]) > 0
    assert found["processes"] == 1 and [run["way"] for run in found["runs"]] == ["plain", "ddp"]
    assert all(len(run["ms"]) == scaling.BLOCK and min(run["ms"]) > 0 and run["kind"] == "weak" for run in found["runs"])
