"""The runner of labs, on small notebooks in a temporary folder."""

import io
import os
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from rich.console import Console

from labkit import labs

NOTE = """\
import json, os
entry = {"lab": "01_good", "kind": "check", "name": "gelu [v1]", "outcome": "26 cases right", "backend": "host"}
with open(os.environ["LABKIT_LOG"], "a") as file:
    file.write(json.dumps(entry) + "\\n")
print("noted by", __import__("labkit").__name__)
"""


class Stage:
    """A folder of labs; `run` returns the exit status and keeps what was printed in `said`."""

    def __init__(self, folder):
        self.labs, self.executed, self.said = folder / "labs", folder / "build" / "labs", ""

    def add(self, name, *cells):
        notebook = new_notebook(cells=[new_markdown_cell("# A lab"), *map(new_code_cell, cells)])
        notebook.metadata.kernelspec = {"name": "a kernel that is not registered here", "display_name": "?"}
        nbformat.write(notebook, self.labs / f"{name}.ipynb")

    def run(self, *names, save=False, jobs=1):
        text = io.StringIO()
        status = labs.run(list(names), save=save, jobs=jobs, console=Console(file=text, width=200))
        self.said = text.getvalue()
        return status

    def contents(self):
        return {path.name: path.read_bytes() for path in self.labs.iterdir()}


@pytest.fixture
def stage(monkeypatch, tmp_path):
    folder = tmp_path / "dépôt avec espaces"
    stage = Stage(folder)
    stage.labs.mkdir(parents=True)
    monkeypatch.setattr(labs, "LABS", stage.labs)
    monkeypatch.setattr(labs, "EXECUTED", stage.executed)
    monkeypatch.setattr(labs.machine, "backend", lambda: "cuda")
    return stage


def texts(path):
    """What the cells of the notebook at `path` printed."""
    cells = nbformat.read(path, as_version=4).cells
    return "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", []))


def test_a_lab_runs_beside_its_own_files_and_leaves_its_notebook_alone(stage):
    stage.add("01_good", NOTE, "import pathlib; print(pathlib.Path.cwd().name)")
    before = stage.contents()
    assert stage.run() == 0
    assert stage.contents() == before
    assert texts(stage.executed / "01_good.ipynb") == "noted by labkit\nlabs\n"
    assert re.search(r"01_good +check +gelu \[v1\] +26 cases right +host", stage.said)
    assert re.search(r"01_good +run +top to bottom +\d+\.\d s", stage.said)
    assert "1 of 1 labs ran to their end" in stage.said


@pytest.mark.parametrize("backend", ["cuda", "host"])
def test_on_a_gpu_the_last_line_names_the_ledger(stage, monkeypatch, backend):
    monkeypatch.setattr(labs.machine, "backend", lambda: backend)
    stage.add("01_good", "1")
    assert stage.run() == 0
    assert stage.said.rstrip().endswith("python3 -m labkit ledger") == (backend == "cuda")


def test_an_exercises_cells_are_left_to_the_learner_and_keep_no_outputs(stage):
    stage.add("01_good", "print('seen')", "raise ValueError('not written yet')", "print('the end')")
    path = stage.labs / "01_good.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[2].update(metadata={"tags": ["exercise"]}, execution_count=7,
                             outputs=[nbformat.v4.new_output("stream", text="a learner's\n")])
    nbformat.write(notebook, path)
    assert stage.run(save=True) == 0, stage.said
    assert texts(path) == texts(stage.executed / "01_good.ipynb") == "seen\nthe end\n"
    assert nbformat.read(path, as_version=4).cells[2].execution_count is None
    stage.add("02_bad", "1", "exercise = 1", "1 / 0")
    notebook = nbformat.read(stage.labs / "02_bad.ipynb", as_version=4)
    notebook.cells[2].metadata.tags = ["exercise"]
    nbformat.write(notebook, stage.labs / "02_bad.ipynb")
    assert stage.run("02") == 1 and "cell 2 of 2: ZeroDivisionError" in stage.said


def test_save_writes_the_outputs_back_and_nothing_of_the_clock(stage):
    stage.add("01_good", "print('seen')")
    assert stage.run("01", save=True) == 0
    assert texts(stage.labs / "01_good.ipynb") == "seen\n"
    once = stage.contents()
    assert stage.run("01", save=True) == 0
    assert stage.contents() == once  # so that a commit shows only what changed


def test_save_without_a_gpu_is_refused_and_touches_nothing(stage, monkeypatch):
    monkeypatch.setattr(labs.machine, "backend", lambda: "host")
    stage.add("01_good", "print('seen')")
    before = stage.contents()
    assert stage.run(save=True) == 2
    assert "outputs of a run on a GPU" in stage.said
    assert stage.contents() == before and not stage.executed.exists()


def test_a_failed_cell_is_told_and_the_other_labs_still_run(stage):
    stage.add("01_bad", "", "ready = True", "def third():\n    raise ValueError('no [such] thing')\nthird()", "print('x')")
    stage.add("02_crash", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    stage.add("03_good", "print('seen')")
    before = stage.contents()
    assert stage.run(save=True) == 1
    assert "01_bad failed: cell 2 of 3: ValueError: no [such] thing" in stage.said
    assert "----> 3 third()" in stage.said
    assert "02_crash failed: cell 1 of 1: its Python process ended" in stage.said
    assert "1 of 3 labs ran to their end" in stage.said
    assert texts(stage.executed / "03_good.ipynb") == "seen\n"
    assert (stage.executed / "01_bad.ipynb").exists()
    after = stage.contents()
    assert {name for name in before if before[name] != after[name]} == {"03_good.ipynb"}  # no failed run is saved
    assert set(after) == set(before)


def test_a_cell_without_end_is_ended(stage, monkeypatch):
    monkeypatch.setattr(labs, "CELL_TIMEOUT", 1)
    stage.add("01_slow", "import time; time.sleep(60)")
    assert stage.run() == 1
    assert "cell 1 of 1: it ran for over 1 s" in stage.said


def test_a_process_that_does_not_start_is_told_and_who_may_know_why(stage, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "none that Python takes")
    stage.add("01_good", "1")
    assert stage.run() == 1
    assert re.search(r"its Python process did not\s+start: .*python3 -m labkit doctor", stage.said, re.DOTALL)


def test_an_interruption_ends_the_kernel_and_the_labs_after_it(stage):
    stage.add("01_long", "import os, pathlib, signal, time\npathlib.Path('kernel').write_text(str(os.getpid()))\n"
                         "os.kill(os.getppid(), signal.SIGINT)\ntime.sleep(60)")
    stage.add("02_after", "1")
    assert stage.run() == 130
    assert "Interrupted in 01_long" in stage.said and not (stage.executed / "02_after.ipynb").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((stage.labs / "kernel").read_text()), 0)


MEET = """\
import pathlib, time
pathlib.Path("{mine}").touch()
until = time.monotonic() + {seconds}
while not pathlib.Path("{other}").exists() and time.monotonic() < until:
    time.sleep(0.05)
print(pathlib.Path("{other}").exists())
"""


@pytest.mark.parametrize("backend, met", [("host", "True"), ("cuda", "False")])
def test_two_labs_run_side_by_side_but_never_on_a_gpu(stage, monkeypatch, backend, met):
    monkeypatch.setattr(labs.machine, "backend", lambda: backend)
    seconds = 60 if met == "True" else 1
    stage.add("01_one", MEET.format(mine="one", other="two", seconds=seconds))
    stage.add("02_two", MEET.format(mine="two", other="one", seconds=seconds))
    assert stage.run(jobs=2) == 0
    assert texts(stage.executed / "01_one.ipynb").strip() == met
    assert "2 of 2 labs ran to their end" in stage.said


def test_an_interruption_ends_both_labs_that_run_side_by_side(stage, monkeypatch):
    """The last labs are begun first."""
    monkeypatch.setattr(labs.machine, "backend", lambda: "host")
    kernel = "import os, pathlib, signal, time\npathlib.Path('{}').write_text(str(os.getpid()))\n"
    stage.add("03_waits", kernel.format("first") + "time.sleep(60)")
    stage.add("02_stops", kernel.format("second") + "while not pathlib.Path('first').exists():\n    time.sleep(0.05)\n"
                          "os.kill(os.getppid(), signal.SIGINT)\ntime.sleep(60)")
    stage.add("01_after", "1")
    assert stage.run(jobs=2) == 130
    assert "Interrupted in 03_waits" in stage.said and "Interrupted in 02_stops" in stage.said
    assert not (stage.executed / "01_after.ipynb").exists()
    for name in ("first", "second"):
        with pytest.raises(ProcessLookupError):
            os.kill(int((stage.labs / name).read_text()), 0)


@pytest.mark.parametrize("name", ["02", "2", "02_second", "02_se", "labs/02_second.ipynb"])
def test_a_lab_goes_by_its_number_its_name_its_beginning_or_its_path(stage, name):
    stage.add("01_first", "1")
    stage.add("02_second", "1")
    assert labs.select([name]) == [stage.labs / "02_second.ipynb"]
    assert [path.stem for path in labs.select([])] == ["01_first", "02_second"]


def test_a_name_that_no_lab_has_is_told_with_those_that_there_are(stage):
    stage.add("01_first", "1")
    assert stage.run("07") == 2
    assert "no lab '07'; there are: 01_first" in stage.said and not stage.executed.exists()
    stage.add("02_second", "1")
    for name in ("0", "", "01_first_of_all"):  # two labs, none, none
        with pytest.raises(LookupError, match="no lab .*there are: 01_first, 02_second"):
            labs.select([name])


def test_an_empty_folder_is_told(stage):
    assert stage.run() == 0
    assert "There is no lab yet" in stage.said


CUT_OFF = """\
import socket, sys
def refuse(event, arguments):
    local = event != "socket.connect" or not isinstance(arguments[1], tuple) or arguments[1][0] == "127.0.0.1"
    if event == "socket.getaddrinfo" or not local:
        raise OSError(f"there is no network: {event} {arguments}")
sys.addaudithook(refuse)
"""
DRAWS = """\
import labkit, torch
from labkit import report
labkit.start("04_fused_kernel")
report.show({"kind": "curve", "title": "A curve", "x": {"label": "x", "values": [1, 2]},
             "y": {"label": "y"}, "series": {"one": [1.0, 2.0]}})
labkit.bench("forward", {"copy": abs}, tuple, bytes=None)
assert labkit.load("gelu")(torch.ones(3)).shape == (3,)
"""


def test_a_lab_needs_neither_a_display_nor_a_network(stage, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MPLBACKEND", "TkAgg")  # as where the user works with windows elsewhere
    monkeypatch.setenv("LABKIT_BACKEND", "host")
    stage.add("01_good", CUT_OFF, DRAWS)
    assert stage.run() == 0, stage.said
    shown = [output["data"]["text/html"] for cell in nbformat.read(stage.executed / "01_good.ipynb", as_version=4).cells
             for output in cell.get("outputs", []) if "data" in output]
    assert sum("<svg" in html for html in shown) == 2
    assert re.search(r"04_fused_kernel +recorded +forward +shown, not measured here: NVIDIA \w+, \d{4}-", stage.said)
