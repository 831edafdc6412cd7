"""What holds for the repository as a whole: its papers name real commands, and its files keep to the house rules."""

import os
import re
import subprocess
from pathlib import Path

import pytest

import labkit
from labkit import __main__ as command_line

REPOSITORY = Path(__file__).resolve().parents[1]
COMMANDS = {"setup", "labs", "lab", "test", "book", "doctor", "clean"}
LONGEST = 400  # lines of a source file that still fits in a head


def tracked() -> dict[str, str]:
    """The text of each file under version control that is there, by its path."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    texts = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = REPOSITORY / name
        if path.is_file() and path.suffix not in (".png", ".ico", ".woff2", ".xz", ".ncu-rep"):
            texts[name] = path.read_text(encoding="utf-8")
    return texts


def places(pattern: str, texts: dict[str, str]) -> list[str]:
    """Each match as "file:line: match"."""
    return [f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
            for name, text in texts.items() for match in re.finditer(pattern, text)]


def test_nothing_is_left_to_do():
    assert places(r"\b(TO[D]O|FIX[M]E|XX[X])\b", tracked()) == []


def test_no_path_of_one_persons_machine():
    assert places(r"(?<![\w.])/(home|Users|root|work|mnt)/[\w.]+", tracked()) == []


def test_a_notebooks_outputs_hold_no_warning_and_no_path_of_an_installation():
    notebooks = {name: text for name, text in tracked().items() if name.endswith(".ipynb")}
    assert notebooks and places(r"/(site|dist)-packages/[\w./-]*|\w+Warning: |\"name\": \"stderr\"", notebooks) == []


def test_no_package_index_is_named():
    assert places(r"\b(pypi|pythonhosted|npmjs|anaconda|download\.pytorch|debian)\.(org|com)\b", tracked()) == []


def test_source_files_fit_in_a_head():
    sources = {name: text.count("\n") for name, text in tracked().items()
               if Path(name).suffix in (".py", ".cu", ".cuh", ".h", ".cpp")}
    assert {name: lines for name, lines in sources.items() if lines > LONGEST} == {}


def test_requirements_name_what_the_set_up_and_the_book_rest_on():
    lines = (REPOSITORY / "requirements.txt").read_text().splitlines()
    ranges = dict(re.match(r"([\w-]+)(.*)", line).groups() for line in lines if line and not line.startswith("#"))
    assert {"torch", "ninja", "nbclient", "ipykernel", "jupyterlab", "jupyter-book", "rich", "pytest"} <= set(ranges)
    assert "<2" in ranges["jupyter-book"] and ">=2.9" in ranges["torch"]
    assert "sys_platform" in ranges[next(name for name in ranges if name.startswith("cupy"))]  # none for a Mac


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_make_runs_the_command_of_the_same_name(name):
    shown = subprocess.run(["make", "-n", name, "PYTHON=some python"], cwd=REPOSITORY, capture_output=True, text=True,
                           env={key: value for key, value in os.environ.items()
                                if not key.startswith("MAKE") and key != "ARGS"})
    assert shown.stdout.split() == ["some", "python", "-m", "labkit", name], shown.stderr
    assert command_line._parse([name])[0].command == name


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_commands_that_a_page_names_exist(page):
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    targets = re.findall(r"(?:`|    )(?:LABKIT_\w+=\w+ )?make (\w+)", text)
    calls = re.findall(r"python3 -m labkit ([^`\n]+)", text)
    assert targets and calls
    assert set(targets) <= COMMANDS
    for call in calls:
        command_line._parse(call.split())


def test_the_readme_links_to_what_is_there():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)\)", text) + re.findall(r"^\| `([\w.]+/)`", text, re.MULTILINE)
    assert len(links) > 5
    assert [link for link in links if not (REPOSITORY / link).exists()] == []


@pytest.mark.parametrize("failing", ["none", "setup", "labs", "book", "test"])
def test_ci_runs_the_labs_the_book_and_last_the_tests_and_fails_with_each(tmp_path, failing):
    assert (REPOSITORY / ".ci" / "run").stat().st_mode & 0o111
    script, python = tmp_path / ".ci" / "run", tmp_path / ".venv" / "bin" / "python"
    for path, text in ((script, (REPOSITORY / ".ci" / "run").read_text()), (python, "#!/bin/sh\n"),
                       (tmp_path / "make", f'#!/bin/sh\necho "$@" >> made\necho words of $1\n[ $1 != {failing} ]\n')):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = subprocess.run([script], env={**os.environ, "PATH": path}, capture_output=True, text=True)
    made = (tmp_path / "made").read_text().splitlines()
    assert (done.returncode == 0) == (failing == "none") and (failing == "none" or f"words of {failing}" in done.stdout)
    assert ("test" in made) == (failing in ("none", "test"))
    if "test" in made:
        assert [made[0], sorted(made[1:3]), *made[3:]] == ["setup", ["book", "labs ARGS=--jobs 2"], "test"]


def test_no_name_of_labkit_is_also_a_module_of_it():
    """Whoever imported the module first would find that under the name, and not the function."""
    modules = {path.stem for path in (REPOSITORY / "labkit").glob("*.py")}
    assert not modules & set(labkit.__all__)


def test_lines_of_code_are_at_most_128_columns_long():
    endings = {".py", ".cu", ".cuh", ".cpp", ".h"}
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split("\n")
    long = [f"{name}:{number}" for name in listed if Path(name).suffix in endings and (REPOSITORY / name).exists()
            for number, line in enumerate((REPOSITORY / name).read_text(encoding="utf-8").splitlines(), 1) if len(line) > 128]
    assert long == []


@pytest.mark.parametrize("backend, workers, threads",
                         [("host", ["-n", "auto", "--dist", "worksteal"], "1"), ("cuda", [], None)])
def test_tests_share_the_cores_and_have_a_gpu_alone(monkeypatch, backend, workers, threads):
    called = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(command_line.machine, "backend", lambda: backend)
    monkeypatch.setattr(command_line, "_python", lambda *words: called.append((words, os.environ.get("OMP_NUM_THREADS"))) or 0)
    assert command_line.main(["test", "--here", "-k", "gelu"]) == 0
    assert called == [(("-m", "pytest", "-q", *workers, "-k", "gelu"), threads)]
