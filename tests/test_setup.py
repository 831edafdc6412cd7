"""The set-up and the command line, with pip and the making of environments replaced by stand-ins."""

import errno
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit import __main__ as command_line
from labkit import machine, pip, setup

REPOSITORY = Path(__file__).resolve().parents[1]


class Stage:
    """A repository in a temporary folder. `steps` lists what the set-up did; `fails` makes pip raise it."""

    def __init__(self, folder: Path):
        self.folder, self.venv = folder, folder / ".venv"
        self.steps: list[str] = []
        self.fails: Exception | None = None
        (folder / "requirements.txt").write_text("torch\n")

    def make_venv(self) -> None:
        self.steps.append("venv")
        python = self.venv / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\necho 3.11\n")
        python.chmod(0o755)

    def pip(self, *arguments: str) -> None:
        self.steps.append(f"pip {' '.join(arguments)}")
        if self.fails:
            raise self.fails

    def ensure(self) -> list[str]:
        """The steps that a set-up now takes."""
        self.steps.clear()
        assert setup.ensure() == self.venv / "bin" / "python"
        return self.steps


@pytest.fixture
def stage(monkeypatch, tmp_path):
    folder = tmp_path / "kopie é x"
    folder.mkdir()
    stage = Stage(folder)
    monkeypatch.setattr(setup, "REPOSITORY", folder)
    monkeypatch.setattr(setup, "VENV", stage.venv)
    monkeypatch.setattr(setup, "_make_venv", stage.make_venv)
    monkeypatch.setattr(setup, "_pip", stage.pip)
    monkeypatch.setattr(setup, "_nvidia_gpu", lambda: False)
    monkeypatch.setattr(setup, "_toolkit_facts", lambda: ["13.0", "/usr/local/cuda/bin/nvcc", None])
    return stage


FIRST = ["venv", "pip --editable ."]


def test_the_first_run_installs_and_the_second_does_nothing(stage):
    assert stage.ensure() == FIRST
    assert stage.ensure() == []


def test_the_download_is_announced_before_it_begins(stage, capsys):
    stage.fails = pip.SetupError("no network")
    with pytest.raises(pip.SetupError):
        setup.ensure()
    said = capsys.readouterr().out
    assert "GiB free" in said and "2 GB" in said and "--here" in said  # torch is in the Python that runs this


def test_changed_requirements_are_installed_into_the_same_environment(stage):
    stage.ensure()
    (stage.folder / "requirements.txt").write_text("torch\nrich\n")
    assert stage.ensure() == ["pip --editable ."]
    assert stage.ensure() == []


def test_an_interrupted_first_run_is_begun_afresh(stage):
    stage.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        setup.ensure()
    (stage.venv / "half a package").touch()
    stage.fails = None
    assert stage.ensure() == FIRST
    assert not (stage.venv / "half a package").exists()


def test_a_pip_that_was_killed_counts_as_an_interruption(stage):
    stage.ensure()
    (stage.folder / "requirements.txt").write_text("torch\nrich\n")
    stage.fails = pip.Killed("pip ended with status -9")
    with pytest.raises(pip.SetupError):
        setup.ensure()
    stage.fails = None
    assert stage.ensure() == FIRST


def test_a_failed_update_leaves_the_environment_that_worked(stage):
    stage.ensure()
    (stage.venv / "installed").touch()
    (stage.folder / "requirements.txt").write_text("torch\nrich\n")
    stage.fails = pip.SetupError("no network")
    with pytest.raises(pip.SetupError):
        setup.ensure()
    assert setup.usable()
    stage.fails = None
    assert stage.ensure() == ["pip --editable ."]
    assert (stage.venv / "installed").exists()


def test_an_environment_whose_python_is_gone_is_made_afresh(stage):
    stage.ensure()
    (stage.venv / "bin" / "python").unlink()
    assert setup.usable() is None
    assert stage.ensure() == FIRST


def test_the_readers_own_environment_is_used_and_never_removed(stage):
    stage.make_venv()
    (stage.venv / "own").touch()
    stage.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        setup.ensure()
    stage.fails = None
    assert stage.ensure() == ["pip --editable ."]
    assert (stage.venv / "own").exists()


def test_the_readers_own_environment_that_is_broken_is_left_for_them(stage):
    stage.venv.mkdir()
    (stage.venv / "own").touch()
    with pytest.raises(pip.SetupError, match="labkit did not make it. Move it away"):
        setup.ensure()
    assert (stage.venv / "own").exists()


def test_on_a_disk_that_runs_no_programs_nothing_is_made(stage, monkeypatch):
    monkeypatch.setattr(machine.os, "statvfs", lambda folder: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(pip.SetupError, match="is mounted noexec, .* Copy this repository to another disk, or .* --here"):
        setup.ensure()
    assert not stage.venv.exists() and not stage.steps


@pytest.mark.parametrize("named, said", [(None, "none is there"), ("g++-99", "CXX names 'g\\+\\+-99'")])
def test_without_a_compiler_nothing_is_made(stage, monkeypatch, tmp_path, named, said):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", named) if named else monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(pip.SetupError, match=f"C\\+\\+ compiler is needed, and {said}.*apt install g\\+\\+"):
        setup.ensure()
    assert not stage.venv.exists() and not stage.steps


@pytest.mark.parametrize("number, mend", [
    (errno.EROFS, "copy this repository to a folder that is yours, or use this Python as"), (errno.ENOSPC, "free some disk")])
def test_what_the_system_refuses_is_one_line_that_says_what_to_do(stage, monkeypatch, number, mend):
    def refuse(path, *mode, **options):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(pip.SetupError, match=f"^{os.strerror(number)}: .*build. To mend it: {mend}"):
        setup.ensure()
    assert stage.steps == []


def test_without_ensurepip_the_package_to_install_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(pip.SetupError, match=r"ensurepip is missing.*apt install python3\.\d+-venv.*--here"):
        setup._make_venv()


# -- nvcc from PyPI -----------------------------------------------------------------------------------------

TOOLKIT = "pip cuda-toolkit[nvcc,nvvm,crt,cudart,cccl]=="


@pytest.fixture
def on(stage, monkeypatch):
    """on(gpu, facts, ...): the stage on a machine with or without a GPU, and what `_toolkit_facts` finds there."""
    def machine_with(gpu, facts, system="linux", processor="x86_64"):
        monkeypatch.setattr(setup, "_nvidia_gpu", lambda: gpu)
        monkeypatch.setattr(setup, "_toolkit_facts", lambda: facts)
        monkeypatch.setattr(setup.sys, "platform", system)
        monkeypatch.setattr(setup.platform, "machine", lambda: processor)
        return stage

    return machine_with


@pytest.mark.parametrize("gpu, cuda, release, wanted", [
    (True, "13.0", "13.0.3.0", "13.0.3.0"), (True, "13.1", None, "13.1.*"), (False, "13.1", "13.1.0", "13.1.0"),
    (False, "12.8", None, "13.0.2"), (False, "12.8", "12.8.1", "13.0.2"), (False, None, None, "13.0.2"),
    (True, None, None, "13.0.2")])
def test_nvcc_comes_in_the_release_that_torch_uses_or_in_one_to_read_with(on, capsys, gpu, cuda, release, wanted):
    assert on(gpu, [cuda, None, release]).ensure() == [*FIRST, TOOLKIT + wanted]
    said = capsys.readouterr().out
    assert "There is no nvcc: installing" in said
    assert ("a build without CUDA" in said) == (gpu and cuda is None)


@pytest.mark.parametrize("gpu, facts, system, processor", [
    (True, ["13.0", "/usr/local/cuda/bin/nvcc", None], "linux", "x86_64"), (True, ["12.8", None, None], "linux", "x86_64"),
    (False, ["13.0", "/usr/local/cuda/bin/nvcc", None], "linux", "aarch64"), (False, [None, None, None], "darwin", "arm64"),
    (False, [None, None, None], "linux", "riscv64")])
def test_nvcc_is_not_installed_where_it_is_there_or_would_not_help(on, capsys, gpu, facts, system, processor):
    assert on(gpu, facts, system, processor).ensure() == FIRST
    assert ("install the CUDA toolkit 12.8 from NVIDIA" in capsys.readouterr().out) == (facts[0] == "12.8")


@pytest.mark.parametrize("gpu, facts, needed", [
    (True, ["13.0", None, None], True), (False, ["13.0", None, None], False), (True, [None, None, None], False)])
def test_a_set_up_without_nvcc_fails_only_where_kernels_run_on_a_gpu(on, monkeypatch, capsys, gpu, facts, needed):
    on(gpu, facts)

    def pip_without_toolkit(*arguments):
        if arguments[0].startswith("cuda-toolkit"):
            raise pip.SetupError("no network")

    monkeypatch.setattr(setup, "_pip", pip_without_toolkit)
    if needed:
        with pytest.raises(pip.SetupError, match="no network"):
            setup.ensure()
        assert setup.usable() is None
    else:
        assert setup.ensure() and setup.usable()
        assert "labs show recorded machine code: no network" in capsys.readouterr().out


def test_a_pip_that_is_killed_over_nvcc_is_an_interruption_also_without_a_gpu(on, monkeypatch):
    on(False, [None, None, None])

    def pip_is_killed(*arguments):
        if arguments[0].startswith("cuda-toolkit"):
            raise pip.Killed("pip ended with status -9")

    monkeypatch.setattr(setup, "_pip", pip_is_killed)
    with pytest.raises(pip.Killed):
        setup.ensure()
    assert setup.usable() is None


def test_a_linker_finds_the_runtime_of_pypis_toolkit(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libcudart.so.13").write_text("runtime")
    for _ in range(2):  # a later set-up finds the links there
        setup.complete_toolkit(tmp_path)
        assert (tmp_path / "lib64" / "libcudart.so").read_text() == "runtime"


# -- pip ----------------------------------------------------------------------------------------------------

def fake_python(folder: Path, script: str) -> Path:
    path = folder / "python of the test"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("line, hint", [
    ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "Free some disk"),
    ("WARNING: Retrying after connection broken by NewConnectionError", "Check the network"),
    ("ERROR: something that nobody foresaw", "Read the end of that file"),
    ("ERROR: Cannot install a and b.\nERROR: ResolutionImpossible: for help visit a page", "ERROR: Cannot install a and b. (")])
def test_a_failed_pip_ends_in_one_line_that_says_what_to_do(tmp_path, line, hint):
    python = fake_python(tmp_path, f"echo '{line}'; exit 1")
    log = tmp_path / "build" / "setup.log"
    with pytest.raises(pip.SetupError) as error:
        pip.pip_install("torch", python=python, folder=tmp_path, log=log)
    assert hint in str(error.value) and str(log) in str(error.value) and "\n" not in str(error.value)
    assert line in log.read_text()


def test_a_killed_pip_is_told_from_one_that_gave_up(tmp_path):
    with pytest.raises(pip.Killed):
        pip.pip_install("torch", python=fake_python(tmp_path, "kill -9 $$"), folder=tmp_path, log=tmp_path / "log")


def test_progress_off_a_terminal_names_only_large_downloads(tmp_path, capsys):
    said = "Collecting a\n  Downloading small-1.0-py3-none-any.whl (1.2 MB)\nProgress 1 of 2\n" \
           "  Downloading torch-2.13.0-cp311.whl (541.1 MB)\nInstalling collected packages: a, small, torch"
    pip.pip_install("a", python=fake_python(tmp_path, f"printf '{said}\\n'"), folder=tmp_path, log=tmp_path / "log")
    out = capsys.readouterr().out
    assert "torch (541.1 MB)" in out and "installing: 3 in all" in out and "small" not in out
    assert "Progress" not in (tmp_path / "log").read_text()


# -- the command line ---------------------------------------------------------------------------------------

def test_a_command_is_run_again_inside_the_environment(monkeypatch):
    called = {}
    monkeypatch.setattr(setup, "ensure", lambda: Path("/elsewhere/.venv/bin/python"))
    monkeypatch.setattr(setup, "VENV", Path("/elsewhere/.venv"))
    monkeypatch.setattr(os, "execve", lambda path, arguments, environment: called.update(
        arguments=arguments, environment=environment))
    monkeypatch.setattr(command_line, "_run", lambda options, extra: 0)
    command_line.main(["test", "-k", "gelu"])
    assert called["arguments"] == ["/elsewhere/.venv/bin/python", "-m", "labkit", "--here", "test", "-k", "gelu"]
    assert called["environment"]["PATH"].startswith("/elsewhere/.venv/bin" + os.pathsep)
    assert called["environment"]["PYTHONPATH"].split(os.pathsep)[0] == str(REPOSITORY)


@pytest.mark.parametrize("arguments", [["--here", "labs"], ["labs", "--here"]])
def test_here_sets_nothing_up(monkeypatch, arguments):
    monkeypatch.setattr(setup, "ensure", lambda: pytest.fail("set up in spite of --here"))
    monkeypatch.setattr(command_line, "_run", lambda options, extra: 7)
    assert command_line.main(arguments) == 7


def test_doctor_installs_nothing_where_the_set_up_has_not_run(monkeypatch):
    monkeypatch.setattr(setup, "ensure", lambda: pytest.fail("doctor must work where a set-up does not"))
    monkeypatch.setattr(setup, "usable", lambda: None)
    monkeypatch.setattr(command_line, "_run", lambda options, extra: 3)
    assert command_line.main(["doctor"]) == 3


def test_a_failed_set_up_is_one_line_and_status_1(monkeypatch, capsys):
    def fails():
        raise pip.SetupError("no compiler; install one")

    monkeypatch.setattr(setup, "ensure", fails)
    assert command_line.main(["labs"]) == 1
    assert capsys.readouterr().err == "Set-up failed: no compiler; install one\n"


def test_unknown_arguments_are_refused_except_where_a_tool_takes_them(capsys):
    assert command_line._parse(["test", "-x", "tests/test_gelu.py"])[1] == ["-x", "tests/test_gelu.py"]
    for arguments in (["book", "-x"], ["labs", "--sav"], ["lbas"], []):
        with pytest.raises(SystemExit) as ended:
            command_line._parse(arguments)
        assert ended.value.code == 2
    assert "doctor     say what this machine has" in capsys.readouterr().err  # without a command: which there are


@pytest.mark.parametrize("everything", [False, True])
def test_clean_removes_what_was_built_and_nothing_else(monkeypatch, tmp_path, everything):
    monkeypatch.setattr(command_line, "REPOSITORY", tmp_path)
    built = ["build/gelu/a.so", "_build/html/index.html", "labkit/__pycache__/a.pyc", ".pytest_cache/x"]
    kept = ["labs/01_own.ipynb", "labs/build/notes.txt", "notes.txt", "results/gpu.json", ".git/__pycache__/x"]
    for name in [*built, *kept, ".venv/lib/__pycache__/a.pyc"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").touch()
    shutil.rmtree(tmp_path / "_build")
    (tmp_path / "_build").symlink_to(tmp_path / "elsewhere")
    assert command_line.clean(everything) == 0
    assert all((tmp_path / name).exists() for name in [*kept, "elsewhere/mine"])
    assert not any((tmp_path / name).exists() for name in built if not name.startswith("_build"))
    assert (tmp_path / ".venv/lib/__pycache__/a.pyc").exists() is not everything


def test_the_command_line_works_from_a_folder_with_spaces_and_accents(tmp_path):
    copy = tmp_path / "mon dossier é ü"
    shutil.copytree(REPOSITORY / "labkit", copy / "labkit", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "build").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-m", "labkit", "clean"], cwd=copy, env=environment, capture_output=True,
                          text=True, encoding="utf-8")
    assert done.returncode == 0 and f"removed {copy / 'build'}" in done.stdout, done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_finds_labkit_whatever_python_is_told_of_this_folder():
    python = f"{shlex.quote(sys.executable)} -S"  # which looks for packages nowhere else
    done = subprocess.run(["make", f"PYTHON={python}", "clean", "ARGS=--help"], cwd=REPOSITORY, capture_output=True, text=True,
                          env={"PATH": os.environ["PATH"], "PYTHONSAFEPATH": "1"})
    assert done.returncode == 0 and "remove what builds have made" in done.stdout, done.stderr


def test_what_is_missing_from_this_python_is_named(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "labkit.labs", raising=False)
    monkeypatch.delattr("labkit.labs", raising=False)
    monkeypatch.setitem(sys.modules, "nbclient", None)
    assert command_line.main(["--here", "labs"]) == 1
    assert "lacks nbclient" in capsys.readouterr().err


def test_a_marker_that_is_half_written_is_no_marker(stage):
    stage.ensure()
    (stage.venv / "labkit-setup.json").write_text(json.dumps({"state": "complete"})[:9])
    assert setup.usable() is None
