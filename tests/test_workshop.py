"""The workshop's kit: assignments go through nbgrader, the dashboard reads its gradebook, and a learner's workspace is the
learner's own. The whole hub is tried by workshop/try_hub.py.
"""

import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest
import yaml

from labkit import __main__ as command_line
from labkit import assignments, build_folder, dashboard, exercises, preflight

pytest.importorskip("nbgrader", reason="needs workshop/requirements.txt")
WORKSHOP = Path(__file__).resolve().parents[1] / "workshop"
LAB, NAME = "08_sync_pitfalls", "barrier"


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(autouse=True)
def kept_environment(monkeypatch):
    """nbgrader's configuration sets a variable of the process."""
    monkeypatch.setenv("JUPYTER_PATH", "")


# -- assignments, nbgrader, dashboard --------------------------------------------------------------------------

def done(result):
    assert result["success"], result.get("error") or result.get("log")


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course of one lab, with only its first exercise, in which two answered and both were graded."""
    from nbgrader.apps import NbGraderAPI

    folder = tmp_path_factory.mktemp("workshop") / "course"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignments, "names", lambda lab=None: [NAME])
        assignments.write(folder)
    with open(folder / "nbgrader_config.py", "a", encoding="utf-8") as settings:
        # Root would grade as a user who is nobody, and who may not get at this Python; that is tried below, and by try_hub.py.
        settings.write('c.Execute.kernel_name = "python3"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # nbgrader calls alembic
        patch.setenv("JUPYTER_PATH", "")  # is set by the configuration
        settings = preflight.settings(folder)
        nbgrader = NbGraderAPI(settings.coursedir, config=settings.config)
        done(nbgrader.generate_assignment(LAB))
        solution = f"%%writefile {NAME}.cu\n{exercises.read(NAME).solution.read_text()}"
        for learner, text in (("solves", solution), ("starts", None)):
            answer = nbformat.read(folder / "release" / LAB / f"{LAB}.ipynb", 4)
            for cell in answer.cells:
                if cell.id == f"{NAME}-answer" and text:
                    cell.source = text
            path = folder / "submitted" / learner / LAB / f"{LAB}.ipynb"
            path.parent.mkdir(parents=True)
            nbformat.write(answer, path)
            done(nbgrader.autograde(LAB, learner))
        done(nbgrader.generate_feedback(LAB))
    return folder


def test_a_release_holds_the_starter_and_a_test_that_learners_cannot_change(course):
    cells = {cell.id: cell for cell in nbformat.read(course / "release" / LAB / f"{LAB}.ipynb", 4).cells}
    magic, text = cells[f"{NAME}-answer"].source.split("\n", 1)
    assert magic == f"%%writefile {NAME}.cu" and text + "\n" == exercises.read(NAME).starter.read_text()
    assert cells[NAME].metadata.nbgrader.grade and cells[NAME].metadata.nbgrader.locked
    assert not any("BEGIN SOLUTION" in cell.source for cell in cells.values())
    assert exercises.read(NAME).title in cells[f"{NAME}-task"].source


def test_a_solution_gets_all_points_and_a_starter_none_and_the_feedback_names_the_missing_idea(course):
    found = dashboard.passed(course / "gradebook.db")
    assert found[LAB, NAME].to_dict() == {"solves": dashboard.PASSED, "starts": dashboard.TRIED}
    pages = {learner: (course / "feedback" / learner / LAB / f"{LAB}.html").read_text() for learner in ("solves", "starts")}
    idea = " ".join(exercises.read(NAME).ideas["races"].split()[-9:])
    assert idea in pages["starts"] and idea not in pages["solves"]


def test_the_dashboard_shows_who_did_nothing_and_takes_names_for_text(course, tmp_path, capsys, monkeypatch):
    from nbgrader.api import Course, Gradebook

    copied = tmp_path / "course"
    copied.mkdir()
    shutil.copy(course / "gradebook.db", copied)
    with Gradebook(f"sqlite:///{copied}/gradebook.db") as book:
        book.add_student("<b>idle</b>")
        book.db.query(Course).filter(Course.id == "default_course").delete()
        book.db.commit()
    kept = (copied / "gradebook.db").read_bytes()
    assert command_line.main(["dashboard", "--here", str(copied), "--html", str(tmp_path / "page.html")]) == 0
    assert (copied / "gradebook.db").read_bytes() == kept
    out, page = capsys.readouterr().out, (tmp_path / "page.html").read_text()
    assert "Learners: 3. Exercises: 1. Passed: 1 of 3. By fewest: barrier, by 1." in out and "<b>idle</b>" in out
    assert "&lt;b&gt;idle&lt;/b&gt;" in page and "<b>idle" not in page and page.count(">passed<") == page.count(">tried<") == 1
    assert "http" not in page and "src=" not in page


def test_a_course_without_a_gradebook_is_told_how_to_get_one_and_none_is_made(tmp_path, capsys):
    assert dashboard.tell(tmp_path) == 1
    assert "nbgrader generate_assignment LAB makes it" in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_every_exercise_is_in_its_labs_assignment_and_what_a_teacher_has_edited_stays(tmp_path, capsys):
    assignments.write(tmp_path / "course")
    written = {path.stem: nbformat.read(path, 4) for path in (tmp_path / "course" / "source").glob("*/*.ipynb")}
    graded = {(lab, cell.metadata.nbgrader.grade_id) for lab, notebook in written.items() for cell in notebook.cells
              if cell.metadata.nbgrader.grade}
    assert graded == {(exercises.read(name).lab, name) for name in exercises.names()}
    for notebook in written.values():
        nbformat.validate(notebook)
    assert stat.S_IMODE((tmp_path / "course").stat().st_mode) == 0o700
    edited = next((tmp_path / "course" / "source").glob("*/*.ipynb"))
    edited.write_text("mine")
    capsys.readouterr()
    assignments.write(tmp_path / "course")
    assert edited.read_text() == "mine" and capsys.readouterr().out.splitlines() == [
        f"left {edited}, which differs from what would be written; remove it to have it anew"]


@pytest.fixture
def inbox(course, tmp_path, monkeypatch):
    """submit(name, owner): a folder of answers. collect(): what there is then, {learner: {file: text}}, and what it said."""
    monkeypatch.setenv("WORKSHOP_EXCHANGE", str(tmp_path / "exchange"))
    (tmp_path / "exchange").mkdir()
    (tmp_path / "exchange").chmod(0o1777)
    inbound, copied = tmp_path / "exchange" / "kernel-to-gradient" / "inbound", tmp_path / "course"
    inbound.mkdir(parents=True)
    copied.mkdir()
    for path in ("gradebook.db", "nbgrader_config.py"):
        shutil.copy(course / path, copied)

    def collect():
        done = subprocess.run([sys.executable, "-m", "nbgrader", "collect", LAB], cwd=copied, capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(WORKSHOP.parent)})
        assert done.returncode == 0, done.stderr
        answers = {folder.parent.name: {path.name: path.read_text() for path in folder.iterdir()}
                   for folder in (copied / "submitted").glob(f"*/{LAB}")}
        return answers, done.stderr

    def submit(name, owner="nobody"):
        folder = inbound / name
        folder.mkdir()
        (folder / f"{LAB}.ipynb").write_text("mine")
        (folder / "timestamp.txt").write_text("no time at all")
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, owner)
        return folder

    return submit, collect


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
def test_an_answer_is_collected_only_from_the_folder_of_its_owner_and_only_plain_files_of_it(inbox, tmp_path):
    submit, collect = inbox
    (tmp_path / "solutions.ipynb").write_text("secret")
    good = submit(f"nobody+{LAB}+2026-01-02 09:00:00 UTC+x")
    (good / "link.cu").symlink_to(tmp_path / "solutions.ipynb")
    os.link(tmp_path / "solutions.ipynb", good / "hard.cu")
    os.mkfifo(good / "pipe.cu")
    (good / "folder").mkdir()
    for name in ("hard.cu", "pipe.cu"):
        shutil.chown(good / name, "nobody")
    with open(good / "large.cu", "wb") as file:
        file.truncate(2**40)
    shutil.chown(good / "large.cu", "nobody")
    (good / "roots.cu").write_text("secret")
    submit(f"daemon+{LAB}+2026-01-02 09:00:00 UTC+x", owner="daemon")
    submit(f"daemon+{LAB}+2026-01-03 09:00:00 UTC+later", owner="nobody")
    submit(f"bin+{LAB}+2026-01-02 09:00:00 UTC+x", owner="nobody")
    submit(f"sys+{LAB}+no time", owner="sys")
    (good.parent / f"games+{LAB}+2026-01-02 09:00:00 UTC+x").symlink_to(tmp_path)
    answers, said = collect()
    assert answers == {"nobody": {f"{LAB}.ipynb": "mine", "timestamp.txt": "2026-01-02 09:00:00 UTC"},
                       "daemon": {f"{LAB}.ipynb": "mine", "timestamp.txt": "2026-01-02 09:00:00 UTC"}}
    assert said.count("it is owned by nobody") == 2 and "no time: " in said and "it is no folder" in said
    for name, why in {"link": "symbolic links", "hard": "owner's alone", "pipe": "owner's alone", "folder": "Is a directory",
                      "large": "more than", "roots": "owner's alone"}.items():
        assert any(f"Left out {name}" in line and why in line for line in said.splitlines()), (name, said)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
def test_an_answer_that_is_handed_in_again_takes_the_place_of_the_one_before(inbox):
    submit, collect = inbox
    submit(f"nobody+{LAB}+2026-01-02 09:00:00 UTC+x")
    collect()
    (submit(f"nobody+{LAB}+2026-01-02 10:00:00 UTC+y") / f"{LAB}.ipynb").write_text("better")
    answers, _ = collect()
    assert answers["nobody"] == {f"{LAB}.ipynb": "better", "timestamp.txt": "2026-01-02 10:00:00 UTC"}


# -- a learner's workspace -------------------------------------------------------------------------------------

def test_a_workspace_is_closed_to_others_and_finds_builds_without_sharing_its_own(tmp_path):
    home, key = tmp_path / "home", "0123456789ab"
    home.mkdir(mode=0o755)
    said = subprocess.run([sys.executable, WORKSHOP / "workspace.py", sys.executable, "-c",
                           "import json, os, resource; print(json.dumps([dict(os.environ), os.getcwd(), "
                           "resource.getrlimit(resource.RLIMIT_DATA)]))"],
                          env={**os.environ, "HOME": str(home), "MEM_LIMIT": str(2**32)}, capture_output=True, text=True,
                          check=True)
    environment, folder, limit = json.loads(said.stdout)
    place = home / "kernel-to-gradient"
    assert folder == str(place) and environment["LABKIT_WORK"] == str(place / "work") and limit == [2**32, 2**32]
    assert Path(environment["LABKIT_BUILD"]).is_relative_to(home)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    made = [path for path in home.rglob("*") if not path.is_symlink()]
    assert made and not [path for path in made if path.stat().st_mode & 0o077]
    assert (place / "labs" / f"{LAB}.ipynb").read_bytes() == (WORKSHOP.parent / "labs" / f"{LAB}.ipynb").read_bytes()

    workspace, shared, own = module(WORKSHOP / "workspace.py"), tmp_path / "shared", tmp_path / "own"
    for folder in (shared / "gelu" / f"host-{key}", shared / "gelu" / f"host-{key}.1.work", shared / "labs" / "mine"):
        folder.mkdir(parents=True)
    (shared / f"binding-gelu-{key}.o").touch()
    workspace.link_builds(shared, own)
    assert {str(path.relative_to(own)) for path in own.rglob("*") if path.is_symlink()} == {f"gelu/host-{key}",
                                                                                           f"binding-gelu-{key}.o"}
    shutil.rmtree(shared / "gelu")
    workspace.link_builds(shared, own)
    assert not (own / "gelu" / f"host-{key}").is_symlink()
    lab = tmp_path / "labs" / "lab.ipynb"
    lab.parent.mkdir()
    lab.write_text("mine")
    workspace.copy_labs(WORKSHOP.parent / "labs", lab.parent)
    (tmp_path / "labs" / f"{LAB}.ipynb").write_text("mine")
    workspace.copy_labs(WORKSHOP.parent / "labs", lab.parent)
    assert (tmp_path / "labs" / f"{LAB}.ipynb").read_text() == lab.read_text() == "mine"


def test_a_link_to_a_broken_build_makes_way_for_ones_own(tmp_path):
    """As where the repository's own is broken: it stays, and is not written to."""
    shared, link = tmp_path / "shared", tmp_path / "own" / "build"
    shared.mkdir()
    (shared / "half").touch()
    link.parent.mkdir()
    link.symlink_to(shared)
    build_folder.remove(link)
    assert not link.is_symlink() and (shared / "half").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives rights up to grade")
def test_root_grades_as_nobody_in_a_folder_that_goes_and_ends_what_is_left():
    place = Path(tempfile.mkdtemp(prefix="workshop-"))
    try:
        place.chmod(0o755)
        (place / "connection.json").write_text("secret")
        (place / "connection.json").chmod(0o600)
        (place / "workspace.sh").write_text('echo "$(id -u) $(id -G) $(pwd) $(cat "$5") $(cat /proc/1/environ 2>&1 | wc -c)"\n'
                                            "sleep 600 >/dev/null 2>&1 &\n")
        program = (f"import sys; sys.path.insert(0, {str(WORKSHOP / 'kernels' / 'graded')!r}); import run_apart as apart; "
                   f"from pathlib import Path; apart.WORKSPACE = {str(place / 'workspace.sh')!r}; sys.executable = '/bin/sh'; "
                   f"apart.main(Path({str(place / 'connection.json')!r}), [])")
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
        uid, group, folder, secret, _ = said.stdout.split()
        assert int(uid) in range(61184, 65520) and group == uid and secret == "secret", said.stderr
        assert not Path(folder).exists()
        assert subprocess.run(["pgrep", "-u", uid]).returncode == 1
    finally:
        shutil.rmtree(place)


# -- settings --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("listed, learners, device, memory", [
    ("", 8, None, None), ("GPU 0: NVIDIA T4 (UUID: GPU-x)\n", 8, None, None),
    ("GPU 0: NVIDIA H200 (UUID: GPU-x)\n", 9, None, "per_process_memory_fraction:0.100"),
    ("".join(f"  MIG 1g.18gb Device {k}: (UUID: MIG-0000000{k}-1111-2222-3333-444444444444)\n" for k in (0, 1)), 4,
     "MIG-00000001-1111-2222-3333-444444444444", "per_process_memory_fraction:0.450")])
def test_the_hub_deals_out_a_gpu_and_its_memory(tmp_path, monkeypatch, listed, learners, device, memory):
    from traitlets.config import PyFileConfigLoader

    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{listed}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    library = tmp_path / "torch" / "lib" / "libc10_cuda.so"
    library.parent.mkdir(parents=True)
    if listed:  # a torch for a CPU has none
        library.write_bytes(b"per_process_memory_fraction" if memory else b"that of torch 2.9")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("WORKSHOP_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("WORKSHOP_LEARNERS", str(learners))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "systemdspawner" else type(
        "Spec", (), {"origin": str(tmp_path / "torch" / "__init__.py")}))
    found = PyFileConfigLoader(str(WORKSHOP / "jupyterhub_config.py")).load_config()
    environment = found.Spawner.environment
    learner = type("Spawner", (), {"user": type("User", (), {"id": 7})})
    assert (environment["CUDA_VISIBLE_DEVICES"](learner) if device else environment.get("CUDA_VISIBLE_DEVICES")) == device
    assert environment.get("PYTORCH_ALLOC_CONF") == memory
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert found.JupyterHub.bind_url.startswith("http://127.0.0.1:")  # no certificate: this machine alone
    assert found.JupyterHub.concurrent_spawn_limit == 0  # a class comes at once
    assert Path(found.Spawner.cmd[1]).is_file() and "--KernelManager.transport=ipc" in found.Spawner.args


def test_every_setting_of_the_hub_is_one_that_its_class_has(tmp_path, monkeypatch):
    """With systemd's spawner too, wherever this runs."""
    from jupyter_server.services.kernels.kernelmanager import MappingKernelManager
    from jupyter_client.manager import KernelManager
    from jupyterhub import app, auth, proxy, spawner
    from systemdspawner import SystemdSpawner
    from traitlets.config import PyFileConfigLoader

    classes = {one.__name__: one for one in (app.JupyterHub, auth.LocalAuthenticator, proxy.ConfigurableHTTPProxy,
                                             spawner.Spawner, SystemdSpawner, KernelManager, MappingKernelManager)}
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: str(path) == "/run/systemd/system" or is_dir(path))
    monkeypatch.setenv("WORKSHOP_STATE", str(tmp_path))
    found = PyFileConfigLoader(str(WORKSHOP / "jupyterhub_config.py")).load_config()
    assert found.JupyterHub.spawner_class == "systemd" and found.SystemdSpawner.unit_extra_properties["MemorySwapMax"] == "0"
    named = [(section, name) for section, settings in found.items() for name in settings]
    named += [tuple(argument.partition("=")[0].removeprefix("--").split(".")) for argument in found.Spawner.args]
    text = (WORKSHOP / "jupyterhub_config.py").read_text()  # the pre-flight looks where the hub does
    assert found.Spawner.mem_limit == f"{preflight.LIMIT_GIB}G" and f'"WORKSHOP_STATE", "{preflight.STATE}"' in text
    assert found.LocalAuthenticator.allowed_groups == {preflight.GROUP}
    assert len(named) > 15 and {"SystemdSpawner", "KernelManager"} <= {section for section, _ in named}
    assert [(section, name) for section, name in named if name not in classes[section].class_traits(config=True)] == []


def test_the_settings_for_a_cluster_are_yaml_and_share_out_what_they_say():
    values, sharing = (yaml.safe_load((WORKSHOP / "kubernetes" / name).read_text())
                       for name in ("values.yaml", "gpu-sharing.yaml"))
    times = yaml.safe_load(sharing["config"]["map"]["default"])["sharing"]["timeSlicing"]["resources"][0]
    learner = values["singleuser"]
    assert times["name"] in learner["extraResource"]["limits"]
    fraction = float(learner["extraEnv"]["PYTORCH_ALLOC_CONF"].split(":")[1])
    assert 0.8 < fraction * times["replicas"] < 0.95
    assert learner["extraEnv"]["JUPYTER_CONFIG_PATH"] + "/workspace.py" == learner["cmd"][1]
    assert values["hub"]["concurrentSpawnLimit"] == 0
    assert learner["cmd"][1:] == ["/opt/kernel-to-gradient/workshop/workspace.py", "jupyterhub-singleuser"]
    image = (WORKSHOP / "Dockerfile").read_text()
    assert "WORKDIR /opt/kernel-to-gradient\n" in image and f"--uid {learner['uid']}" in image
