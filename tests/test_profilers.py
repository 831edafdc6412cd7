"""Profilers that hang, refuse, talk nonsense or are missing: real programs in their place, each told and left behind whole."""

import os
import re
import subprocess
import sys
import time

import pytest

from labkit import environment, profiling, sanitizer

CHILD = '"$PYTHON" -c "import os, time; print(os.getpid(), file=open(os.environ[\'PIDS\'], \'w\'), flush=True); time.sleep(60)"'
PROGRAM = ["-c", "raise SystemExit('the program itself is not to run')"]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """program(text) puts a shell script in ncu's and compute-sanitizer's place."""
    path = tmp_path / "tool"
    monkeypatch.setattr(profiling.machine, "find_ncu", lambda: path)
    monkeypatch.setattr(sanitizer, "installed", lambda: path)
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("PIDS", str(tmp_path / "pid"))

    def write(text):
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    return write


def child(tmp_path, seconds=20):
    """The number of the process that the script started; waits for it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if (tmp_path / "pid").exists() and (text := (tmp_path / "pid").read_text()).endswith("\n"):
            return int(text)
        time.sleep(0.02)
    raise AssertionError("the script started nothing")


def is_gone(process, seconds=10):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            state = open(f"/proc/{process}/stat").read().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_one_that_hangs_is_ended_with_the_program_below_it(program, monkeypatch, tmp_path):
    """ncu is a shell script around the tool, which starts the program: killed alone, it leaves the GPU in use."""
    program(CHILD)
    monkeypatch.setattr(profiling, "TIME_LIMIT", 2)
    with pytest.raises(profiling.NotCounted, match="did not count: .* timed out after 2 seconds"):
        profiling.profile({"a": "a"}, PROGRAM, 1)
    assert is_gone(child(tmp_path))


def interrupted_once_it_runs(tmp_path):
    """Sends this process Ctrl-C, from another one, once the script's child runs."""
    return subprocess.Popen([sys.executable, "-c", f"""
import os, pathlib, signal, time
path = pathlib.Path({str(tmp_path / "pid")!r})
while not (path.exists() and path.read_text().endswith("\\n")):
    time.sleep(0.02)
os.kill({os.getpid()}, signal.SIGINT)
"""])


@pytest.mark.parametrize("run", [
    lambda: profiling.profile({"a": "a"}, PROGRAM, 1),
    lambda: sanitizer.verdict("racecheck", None, (4,)),
    lambda: environment.in_a_new_process("labkit.none", timeout=60)], ids=["ncu", "compute-sanitizer", "a process of labkit's"])
def test_an_interrupted_one_is_ended_with_the_program_below_it(program, monkeypatch, tmp_path, run):
    program(CHILD)
    monkeypatch.setattr(sanitizer, "specification", lambda *arguments, **options: "{}")
    monkeypatch.setattr(environment, "sys", type("Sys", (), {"executable": str(tmp_path / "tool")}))
    with interrupted_once_it_runs(tmp_path), pytest.raises(KeyboardInterrupt):
        run()
    assert is_gone(child(tmp_path))


@pytest.mark.parametrize("script, says", [
    ("echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission' >&2; exit 1", "ERR_NVGPUCTRPERM, this GPU's"),
    ("head -c 3000 /dev/urandom", "it ended with 0 and"), ("kill -SEGV $$", "it ended with -11"),
    ("exit 0", "it ended with 0 and")], ids=["refuses", "bytes", "crashes", "nothing"])
def test_one_that_does_not_count_is_told_in_one_error(program, tmp_path, script, says):
    program(script)
    with pytest.raises(profiling.NotCounted, match=says):
        profiling.profile({"a": "a"}, PROGRAM, 1)
    with pytest.raises(profiling.NotCounted, match=says):
        profiling.export(tmp_path / "x.ncu-rep", [], [], PROGRAM)


@pytest.mark.parametrize("rows, says", [
    (['"ID","Kernel"', '"0","x"'], "the row ['0', 'x'], which is of another kind"),
    (['"ID","Metric Name","Metric Value"', '"0","a"'], "the row ['0', 'a', None]"),
    (['"ID","Metric Name","Metric Value"', '"0","b","1"'], "the row ['0', 'b', '1']"),
    (['"ID","Metric Name","Metric Value"', '"0","a","n/a"'], "of a it says 'n/a'")])
def test_a_table_of_another_kind_is_told_with_its_first_row(rows, says):
    with pytest.raises(profiling.NotCounted, match=re.escape(says)):
        profiling.read_csv("\n".join(rows), {"a": "a"})


@pytest.mark.parametrize("text", ["no program at all", None])
def test_one_that_cannot_be_started_is_told(program, tmp_path, monkeypatch, text):
    if text:
        (tmp_path / "tool").write_text(text)  # not executable
    else:
        monkeypatch.setattr(profiling.machine, "find_ncu", lambda: None)
    with pytest.raises(profiling.NotCounted, match="did not count: (.*Permission denied|ncu is not installed)"):
        profiling.profile({"a": "a"}, PROGRAM, 1)
