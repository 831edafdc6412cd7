"""The first cell of a lab, as on Colab: another Python, another folder, no repository beside, a `google.colab` that is none.

That Python is a new virtual environment with pip, packaging and stand-ins for torch and numpy; pip sees a folder of empty
wheels alone, and git fetches a copy of this checkout in place of the repository's address.
"""

import ast
import base64
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import labkit
from labkit import first_cell, requirements, sources

REPOSITORY = Path(__file__).resolve().parents[1]
LABS = sorted((REPOSITORY / "labs").glob("*.ipynb"))
URL, BRANCH = first_cell.address()
FOLDER = URL.rsplit("/", 1)[1]
HERE = {"torch": "2.9.1", "numpy": "2.0.2"}
FAKE_TORCH = """
import types
version = types.SimpleNamespace(cuda={cuda!r})
cuda = types.SimpleNamespace(
    is_available=lambda: {cuda!r} is not None, current_device=lambda: 0, get_arch_list=lambda: ["sm_75"],
    get_device_properties=lambda i: types.SimpleNamespace(name="Tesla T4", major=7, minor=5, multi_processor_count=40,
                                                          total_memory=15 << 30, L2_cache_size=4 << 20))
"""
# `cell` runs it; what a notebook has after that is written as JSON behind the last line of what was printed.
FRAME = """
import json, os, sys, types
if {on_colab}:
    sys.modules["google"] = types.ModuleType("google")
    sys.modules["google.colab"] = sys.modules["google"].colab = types.ModuleType("google.colab")
def cell():
    exec({source!r}, {{}})
{steps}
import importlib.util as u
print(json.dumps([os.getcwd(), [bool(u.find_spec(name)) for name in ("labkit", "transformer")], os.environ.get("PYTHONPATH")]))
"""


def source_of(path):
    """The first code cell of a notebook."""
    return next(cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code").source


def wheel(folder, name, version, needs=()):
    """An empty package as a wheel in `folder`, or, where that is a site-packages, unpacked and with what pip wants of it."""
    stem, module = f"{name.replace('-', '_')}-{version}", name.replace("-", "_")
    files = {f"{module}/__init__.py": "", f"{stem}.dist-info/top_level.txt": module,
             f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
             f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
                                           + "".join(f"Requires-Dist: {one}\n" for one in needs)}
    digests = {path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
               for path, text in files.items()}
    files[f"{stem}.dist-info/RECORD"] = "".join(f"{path},sha256={digest},\n" for path, digest in digests.items()) \
        + f"{stem}.dist-info/RECORD,,\n"
    if folder.name == "site-packages":
        for path, text in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
    else:
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as file:
            for path, text in files.items():
                file.writestr(path, text)


def lowest(wanted):
    return next(one.version for one in wanted.specifier if one.operator == ">=")


NEEDED = {one.name: lowest(one) for one in requirements.asked() if one.name not in {"packaging", *requirements.NOT_FOR_LABS}}
LACKING = {name: version for name, version in NEEDED.items() if name not in HERE}  # in the Python of `alone`, as it begins


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """What stands in for the repository's address: what the cell needs of this checkout, in a repository of git's."""
    folder = tmp_path_factory.mktemp("hub")
    shutil.copytree(REPOSITORY / "labkit", folder / "labkit", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "labs", folder / "labs", ignore=shutil.ignore_patterns("__pycache__", "*.ipynb"))
    shutil.copy(REPOSITORY / "requirements.txt", folder)
    for command in (["init", "-q", "-b", BRANCH], ["add", "."],
                    ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false", "commit", "-qm", "all"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A folder of wheels, one for each package that the labs need, at the lowest version."""
    folder = tmp_path_factory.mktemp("wheels")
    for name, version in NEEDED.items():
        wheel(folder, name, version)
    return folder


class Alone:
    """A notebook alone in a folder, `cwd`, and the Python of its kernel, whose packages lie in `site`."""

    def __init__(self, folder, hub, wheels):
        self.cwd, programs = folder / "Meine Übungen", folder / "programs"
        venv.create(folder / "python", symlinks=True)
        self.python = folder / "python" / "bin" / "python"
        self.site = next((folder / "python" / "lib").glob("python*/site-packages"))
        for name in ("pip", "packaging"):
            found = importlib.metadata.distribution(name)
            for place in (name, f"{name}-{found.version}.dist-info"):
                shutil.copytree(found.locate_file(place), self.site / place)
        self.has(**HERE)
        self.cwd.mkdir()
        programs.mkdir()
        self.smi = programs / "nvidia-smi"
        self.answers("exit 1")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not re.match("PYTHON|PIP_|GIT_|CUDA_|LABKIT_", name)},
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheels), "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{hub.as_uri()}.insteadOf",
            "GIT_CONFIG_VALUE_0": URL}

    def has(self, **packages):
        for name, version in packages.items():
            shutil.rmtree(self.site / f"{name}-{HERE.get(name)}.dist-info", ignore_errors=True)
            wheel(self.site, name, version)
        if "torch" in packages:
            self.fake_torch(cuda=None)

    def fake_torch(self, cuda):
        (self.site / "torch" / "__init__.py").write_text(FAKE_TORCH.format(cuda=cuda))

    def answers(self, script):
        self.smi.write_text(f"#!/bin/sh\n{script}\n")
        self.smi.chmod(0o755)

    def run(self, steps="cell()", on_colab=True, **environment):
        """Runs `steps` in a new process, where `cell()` runs the cell. Returns what it printed, what it raised, and what a
        notebook has then: its folder, whether labkit and transformer can be imported, PYTHONPATH.
        """
        program = FRAME.format(source=source_of(LABS[3]), steps=steps, on_colab=on_colab)
        done = subprocess.run([self.python, "-c", program], cwd=self.cwd, env={**self.environment, **environment}, timeout=120,
                              capture_output=True, encoding="utf-8")
        said, _, state = done.stdout.rstrip("\n").rpartition("\n")
        return (said, done.stderr, json.loads(state)) if done.returncode == 0 else (done.stdout, done.stderr, None)

    def packages(self):
        """The versions of what is in its site-packages, less pip and packaging."""
        found = importlib.metadata.distributions(path=[str(self.site)])
        return {one.name: one.version for one in found if one.name not in ("pip", "packaging")}


@pytest.fixture
def alone(tmp_path, hub, wheels):
    return Alone(tmp_path, hub, wheels)


def test_alone_it_fetches_the_repository_and_installs_what_the_labs_lack_and_nothing_the_second_time(alone):
    said, _, (cwd, importable, path) = alone.run("cell()\nprint('once')\ncell()")
    folder = alone.cwd / FOLDER
    assert f"Fetched {URL} into {folder}" in said and "Installing ninja, " in said
    assert cwd == str(folder / "labs") and importable == [True, True] and path == str(folder)
    assert alone.packages() == {**NEEDED, **HERE}
    assert not {"jupyterlab", "ipykernel", "jupyter-book", "pytest", "playwright"} & set(alone.packages())
    assert said.endswith("\nonce")
    log = folder / "build" / "setup.log"
    before = log.read_text()
    said, _, state = alone.run(GIT_CONFIG_VALUE_0="nowhere", PIP_FIND_LINKS="nowhere")  # a new kernel in the same folder
    assert re.fullmatch(f"Found {re.escape(str(folder))}. For the newest one, delete that folder.*\nNo GPU is attached.*", said)
    assert state[0] == str(folder / "labs") and log.read_text() == before


@pytest.mark.parametrize("name, version", [("torch", "2.99.1"), ("numpy", "3.0.0")])
def test_a_torch_or_numpy_that_is_newer_than_the_tried_stays_and_the_labs_go_on(alone, name, version):
    alone.has(**{name: version})
    said, _, state = alone.run()
    assert f"{name} {version} is newer than what the labs were tried with, " in said and state[1] == [True, True]
    assert alone.packages() == {**NEEDED, **HERE, name: version}


@pytest.mark.parametrize("name, version, wanted", [("torch", "2.5.1", ">=2.9"), ("numpy", "1.25.0", ">=1.26")])
def test_a_torch_or_numpy_that_is_too_old_is_refused_and_nothing_is_changed(alone, name, version, wanted):
    alone.has(**{name: version})
    before = alone.packages()
    said, _, state = alone.run("for i in range(2):\n  try:\n    cell()\n  except RuntimeError as error:\n    print(error)")
    assert len(re.findall(f"{name} {version} is installed, the labs need {name}.*{wanted}.*runtime version", said)) == 2
    assert alone.packages() == before and state[1] == [False, False]


def test_what_would_change_numpy_is_not_installed(alone, tmp_path, wheels):
    house = shutil.copytree(wheels, tmp_path / "house")
    (house / f"pandas-{NEEDED['pandas']}-py3-none-any.whl").unlink()
    wheel(house, "pandas", NEEDED["pandas"], needs=["numpy>=2.1"])
    wheel(house, "numpy", "2.2.0")
    before = alone.packages()
    _, error, _ = alone.run(PIP_FIND_LINKS=str(house))
    assert re.search(r"SetupError: pip could not install the packages: ERROR: Cannot install .*pandas", error), error
    assert alone.packages() == before
    wheel(house, "pandas", "2.2.1", needs=["numpy>=2"])  # one that takes the numpy that is here
    assert alone.run(PIP_FIND_LINKS=str(house))[2] and alone.packages()["pandas"] == "2.2.1"
    assert alone.packages()["numpy"] == HERE["numpy"]


def test_an_old_package_is_renewed_unless_the_kernel_uses_it_and_others_stay_as_they_are(alone):
    alone.has(rich="13.0", psutil="5.0", attrs="1.0")
    said, _, state = alone.run("import psutil\ncell()")
    assert "psutil 5.0 is in use and stays; the labs were tried with <8,>=5.9" in said and state
    assert {**NEEDED, "psutil": "5.0", "attrs": "1.0"}.items() - alone.packages().items() \
        == {("torch", NEEDED["torch"]), ("numpy", NEEDED["numpy"])}


@pytest.mark.parametrize("here, asked", [("cupy-cuda13x", []), ("cupy-cuda12x", ["cupy-cuda12x"]), (None, ["cupy-cuda12x"])])
def test_no_cupy_is_put_beside_one_for_another_cuda(monkeypatch, here, asked):
    monkeypatch.setattr(requirements, "installed", lambda name: "14.0" if name == here else None)
    assert [one.name for one in requirements.asked() if one.name.startswith("cupy")] == asked


@pytest.mark.parametrize("on_colab", [True, False])
def test_without_a_gpu_it_says_how_to_attach_one_where_that_can_be_done(alone, on_colab):
    alone.has(**LACKING)
    said, _, _ = alone.run(on_colab=on_colab)
    assert "No GPU is attached: kernels run on the CPU" in said
    assert ("Runtime > Change runtime type > T4 GPU" in said) == on_colab


def test_with_a_gpu_it_names_it(alone):
    alone.has(**LACKING)
    alone.answers("echo 550.54.15")
    alone.fake_torch(cuda="12.6")
    said, _, _ = alone.run()
    assert "GPU: Tesla T4, sm_75, 15 GiB, driver 550.54.15" in said and "No GPU" not in said


def test_what_the_machine_lacks_is_told_in_the_doctors_words(alone):
    alone.has(**LACKING)
    said, _, _ = alone.run(CXX="g++-99")
    assert "C++ compiler: CXX=g++-99 is not there. To mend it: unset CXX" in said


def test_where_nothing_can_be_fetched_it_says_so_and_a_later_run_goes_on(alone, tmp_path):
    caught = "try:\n    cell()\nexcept RuntimeError as error:\n    print('FAILED', error)\n"
    said, _, state = alone.run(caught, GIT_CONFIG_KEY_0=f"url.{tmp_path.as_uri()}/none.insteadOf")
    assert "FAILED The repository was not fetched: fatal: " in said and "Check the network" in said
    assert list(alone.cwd.iterdir()) == [] and state[1] == [False, False]
    house, steps = alone.environment["PIP_FIND_LINKS"], f"{caught}os.environ['PIP_FIND_LINKS'] = os.environ['HOUSE']\ncell()"
    said, _, state = alone.run(steps, PIP_FIND_LINKS=str(tmp_path / "none"), HOUSE=house)
    assert "FAILED pip could not install the packages: ERROR: No matching distribution found for ninja" in said
    assert "setup.log" in said and state[1] == [True, True]


@pytest.mark.parametrize("file", ["mine", "labkit/__init__.py"])  # the second as in a copy too old to have a set-up
def test_a_folder_of_the_readers_own_is_not_touched(alone, file):
    path = alone.cwd / FOLDER / file
    path.parent.mkdir(parents=True)
    path.touch()
    _, error, _ = alone.run()
    assert "RuntimeError: The repository was not fetched" in error and "already exists and is not an empty directory" in error
    assert [each for each in (alone.cwd / FOLDER).rglob("*") if each.is_file()] == [path]


def test_a_repository_beside_the_notebook_is_taken_rather_than_fetched(alone, hub, tmp_path):
    alone.has(**LACKING)
    alone.cwd = shutil.copytree(hub, tmp_path / "checkout") / "labs"
    said, _, (cwd, importable, path) = alone.run(GIT_CONFIG_VALUE_0="nowhere")
    assert "Fetched" not in said and cwd == str(alone.cwd) and importable == [True, True] and path == str(tmp_path / "checkout")


def test_in_the_books_own_environment_it_does_nothing(alone):
    alone.cwd = REPOSITORY / "labs"
    before = "before = list(sys.path), set(sys.modules)\n"
    said, _, state = alone.run(f"{before}cell()\nassert sys.path == before[0] and not "
                               "{name for name in sys.modules if 'labkit' in name or 'subprocess' in name} - before[1]",
                               on_colab=False, PYTHONPATH=str(REPOSITORY))
    assert said == "" and state == [str(alone.cwd), [True, True], str(REPOSITORY)] and set(alone.packages()) == set(HERE)


# -- the cell, its address, and what it leaves out ------------------------------------------------------------

def test_every_lab_begins_with_the_cell_as_it_is_derived():
    assert LABS
    for path in LABS:
        first, *others = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert first.source == first_cell.text(), f"{path.name}: run python3 -m labkit.first_cell"
        assert first.metadata == first_cell.FOLDED and first.outputs == []
        assert not any(sources.SETUP in cell.metadata.get("tags", []) for cell in others)


def test_the_address_is_written_in_one_place():
    listed = subprocess.run(["git", "grep", "-lF", URL], cwd=REPOSITORY, capture_output=True, text=True)
    if listed.returncode > 1:
        pytest.skip("not a git checkout")
    assert {name for name in listed.stdout.split() if not name.endswith(".ipynb")} == {"pyproject.toml"}


@pytest.mark.parametrize("tag, counts", [("setup", False), ("exercise", False), ("hide-input", True)])
def test_the_hash_of_a_lab_leaves_out_cells_that_bring_no_figure(tmp_path, monkeypatch, tag, counts):
    path = Path(shutil.copy(LABS[0], tmp_path))
    before = sources.sources_hash(LABS[0].stem)
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("1", metadata={"tags": [tag]}))
    nbformat.write(notebook, path)
    monkeypatch.setattr(sources, "notebook", lambda lab: path)
    assert (sources.sources_hash(LABS[0].stem) != before) == counts


@pytest.fixture
def fork(tmp_path, monkeypatch):
    """fork(url): a repository with another address; its first lab."""
    def at(url):
        text = (REPOSITORY / "pyproject.toml").read_text().replace(URL, url).replace(f'branch = "{BRANCH}"', 'branch = "v2"')
        (tmp_path / "pyproject.toml").write_text(text)
        monkeypatch.setattr(first_cell, "REPOSITORY", tmp_path)
        return Path(shutil.copy(LABS[0], tmp_path))

    return at


def test_a_fork_sets_its_address_once_and_nothing_else_of_a_notebook_changes(fork):
    path = fork("https://github.com/someone/my-labs/")
    before = path.read_text()
    assert first_cell.write(path) and not first_cell.write(path)
    expected = before.replace(URL, "https://github.com/someone/my-labs").replace(f"--branch={BRANCH}", "--branch=v2")
    assert path.read_text() == expected.replace(f'Path(\\"{FOLDER}\\")', 'Path(\\"my-labs\\")')


def test_a_notebook_without_the_cell_gets_it_and_loses_nothing(tmp_path):
    lab, path = nbformat.read(LABS[0], as_version=4), tmp_path / LABS[0].name
    lab.cells[1].execution_count = None  # the set-up cell: one that is new has not run
    whole = nbformat.writes(lab) + "\n"
    del lab.cells[1]
    nbformat.write(lab, path)
    assert path.read_text() != whole and first_cell.write(path) and path.read_text() == whole


@pytest.mark.parametrize("url", ["https://gitlab.com/a/b", "https://github.com/a", "https://github.com/a/b/c",
                                 "https://github.com//b"])
def test_an_address_that_colab_cannot_open_is_refused(fork, url):
    fork(url)
    with pytest.raises(ValueError, match=f"Repository is '{url}'; write it as https://github.com/OWNER/NAME"):
        first_cell.text()


def test_labs_have_a_button_that_opens_them_in_colab_and_chapters_have_none(tmp_path):
    (tmp_path / "labs").mkdir()
    shutil.copy(LABS[0], tmp_path / "labs")
    (tmp_path / "chapter.md").write_text("# A chapter\n")
    (tmp_path / "index.md").write_text(f"# Title\n\n```{{toctree}}\nchapter\nlabs/{LABS[0].stem}\n```\n")
    colab = re.search(r"colab_url: (\S+)", (REPOSITORY / "_config.yml").read_text())[1]
    (tmp_path / "conf.py").write_text(
        "extensions = ['myst_nb', 'labkit.book']\nhtml_theme = 'sphinx_book_theme'\nnb_execution_mode = 'off'\n"
        f"suppress_warnings = ['myst.xref_missing']\nhtml_theme_options = {{'launch_buttons': {{'colab_url': {colab!r}}}}}\n")
    # In a process of its own: myst_nb stays registered with docutils, and other tests' pages would be read by it.
    subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", tmp_path, tmp_path / "html"], cwd=REPOSITORY, check=True)
    assert first_cell.HEAD in (tmp_path / "html" / "labs" / f"{LABS[0].stem}.html").read_text()
    links = {page: re.findall(rf'href="({colab}[^"]*)"', (tmp_path / "html" / f"{page}.html").read_text())
             for page in ("chapter", f"labs/{LABS[0].stem}")}
    assert links == {"chapter": [], f"labs/{LABS[0].stem}": [
        f"{colab}/github/{URL.removeprefix('https://github.com/')}/blob/{BRANCH}/labs/{LABS[0].name}"]}


def test_the_labs_import_nothing_of_what_is_left_out_for_them():
    asked = {Requirement(line.split("#")[0]).name for line in (REPOSITORY / "requirements.txt").read_text().splitlines()
             if line.split("#")[0].strip()}
    assert requirements.NOT_FOR_LABS < asked
    left_out = {module for module, packages in importlib.metadata.packages_distributions().items()
                if set(map(canonicalize_name, packages)) <= requirements.NOT_FOR_LABS}
    assert {"nbformat", "pytest", "jupyter_book"} <= left_out
    todo = [*{f"labkit.{name}" for name in labkit._HOME.values()}, *(path.stem for path in (REPOSITORY / "labs").glob("*.py"))]
    todo += [f"kernels.{path.parent.name}.{path.stem}" for path in (REPOSITORY / "kernels").glob("*/*.py")]
    seen = set()
    while todo:
        name = todo.pop()
        assert name.partition(".")[0] not in left_out, name
        for path in (REPOSITORY / place / f"{name.replace('.', '/')}.py" for place in ("", "labs")):
            if name not in seen and path.exists():
                todo += imported(path)
        seen.add(name)
    assert {"pandas", "torch", "labkit.report", "labkit.host", "transformer"} <= seen


def imported(path):
    """The modules that a file imports, at its head or later; each name that is imported from one counts as if a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)
