"""The pre-flight of a workshop finds what would go wrong on the day, and says what to do."""

import datetime
import os
import pwd
import shutil
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit import __main__ as command_line
from labkit import assignments, exercises, preflight

pytest.importorskip("nbgrader", reason="needs workshop/requirements.txt")
pytest.importorskip("jupyterhub", reason="needs workshop/requirements.txt")
from cryptography import x509  # noqa: E402
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402

LAB, NAME = "08_sync_pitfalls", "barrier"


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one lab, with only its first exercise, that is ready to be released."""
    from nbgrader.apps import NbGraderAPI

    monkeypatch.setattr(assignments, "names", lambda lab=None: [NAME])
    monkeypatch.setattr(preflight.exercises, "names", lambda lab=None: [NAME])
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # nbgrader calls alembic
    monkeypatch.setenv("JUPYTER_PATH", "")  # is set by the configuration
    folder = tmp_path / "made" / "course"
    assignments.write(folder)
    settings = preflight.settings(folder)
    made = NbGraderAPI(settings.coursedir, config=settings.config).generate_assignment(LAB)
    assert made["success"], made.get("error") or made.get("log")
    return folder


def test_the_pre_flight_finds_a_course_and_what_is_missing_in_it(course, tmp_path):
    found = preflight.assignments(course)
    assert found.state == "ok" and "'kernel-to-gradient'" in found.seen, found
    assert preflight.assignments(tmp_path).advice == f"python3 -m labkit assignments {tmp_path}"
    copied = tmp_path / "course"
    shutil.copytree(course, copied)
    shutil.rmtree(copied / "release")
    assert preflight.assignments(copied).advice == (
        f"cd {copied} && for lab in {LAB}; do nbgrader generate_assignment $lab && nbgrader release_assignment $lab; done")
    copied.chmod(0o755)
    assert preflight.assignments(copied).advice == f"chmod 700 {copied}"


def test_the_pre_flight_wants_an_exchange_that_is_open_to_all_and_the_assignments_in_it(course, tmp_path, monkeypatch):
    root = tmp_path / "exchange"
    monkeypatch.setenv("WORKSHOP_EXCHANGE", str(root))
    assert preflight.exchange(course).advice == f"mkdir -p {root} && chmod 1777 {root}"
    root.mkdir()
    assert preflight.exchange(course).state == "fail"
    root.chmod(0o1777)
    assert preflight.exchange(course).advice == f"cd {course} && nbgrader release_assignment {LAB}"
    released = root / "kernel-to-gradient" / "outbound" / LAB
    released.mkdir(parents=True)
    (released / f"{LAB}.ipynb").touch()
    assert preflight.exchange(course) == preflight.Finding("exchange", "ok", str(root))


def test_the_pre_flight_names_what_learners_could_write(tmp_path):
    tmp_path.chmod(0o755)
    library = tmp_path / "build" / "gelu.so"
    library.parent.mkdir(mode=0o755)
    library.touch(0o644)
    assert preflight.read_only(tmp_path).state == "ok"
    library.chmod(0o646)
    found = preflight.read_only(tmp_path)
    assert found.state == "fail" and str(library) in found.seen and found.advice == f"chmod -R go-w {tmp_path}"


def test_the_pre_flight_counts_room_by_learner_and_takes_a_port_for_taken(monkeypatch):
    monkeypatch.setattr(preflight.machine, "free_memory", lambda: 8.5)
    assert preflight.memory(4).state == "ok" and preflight.memory(5).state == "fail"
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 2 * 2**30))
    assert preflight.disk(4).state == "ok" and preflight.disk(5).state == "fail"
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(preflight, "public_port", lambda: server.getsockname()[1])
        assert "Address already in use" in preflight.ports().seen
        monkeypatch.setattr(preflight, "public_port", lambda: 0)
        monkeypatch.setattr(preflight, "PORTS", {server.getsockname()[1]: "another's"})
        assert preflight.ports().state == "fail"
    assert preflight.ports().state == "ok"


def test_the_pre_flight_says_which_solution_fails_and_which_starter_passes(monkeypatch):
    monkeypatch.setattr(preflight.exercises, "names", lambda lab=None: [NAME])
    asked = exercises.read(NAME)
    assert preflight.answers().state == "ok"
    grade = preflight.grade
    monkeypatch.setattr(preflight, "grade", lambda name, file, show: grade(name, asked.starter, show))
    assert f"the solution of {NAME} fails at races" in preflight.answers().seen
    monkeypatch.setattr(preflight, "grade", lambda name, file, show: grade(name, asked.solution, show))
    assert preflight.answers().seen == f"the starter of {NAME} passes"


@pytest.fixture
def group(tmp_path, monkeypatch):
    """group(home): one learner is in the group, whose account is that of the tests."""
    def of_one(home):
        found = SimpleNamespace(pw_name=pwd.getpwuid(os.getuid()).pw_name, pw_uid=os.getuid(), pw_gid=os.getgid(),
                                pw_dir=str(home))
        monkeypatch.setattr(preflight.grp, "getgrnam", lambda name: SimpleNamespace(gr_mem=["learner", "gone"]))
        monkeypatch.setattr(preflight.pwd, "getpwnam", lambda name: {"learner": found}[name])

    return of_one


def test_the_pre_flight_wants_accounts_with_passwords_and_programs(monkeypatch, group):
    monkeypatch.setattr(preflight.machine, "output", lambda *command: f"learner {state} 2026-01-01 0 99999 7 -1")
    group("/")
    for state, wanted in (("P", "ok"), ("L", "fail"), ("NP", "fail")):
        assert preflight.accounts(1).state == wanted
    assert preflight.accounts(1).advice.startswith("passwd ")
    assert preflight.accounts(2).seen == "1 in the group learners; 2 wanted"  # who is gone does not count
    monkeypatch.setattr(preflight.machine, "output", lambda *command: None)  # an account of a directory service
    assert preflight.accounts(1).state == "ok"
    monkeypatch.setattr(preflight.shutil, "which", lambda name, path: None if name == "configurable-http-proxy" else name)
    assert preflight.programs().advice == "npm install -g configurable-http-proxy@5"
    monkeypatch.setattr(preflight.shutil, "which", lambda name, path: name)
    assert preflight.programs().seen == "configurable-http-proxy does not start"
    monkeypatch.setattr(preflight.machine, "output", lambda *command: "5.3.0")
    assert preflight.programs().state == "ok"


def test_without_a_group_the_pre_flight_finds_no_accounts(monkeypatch):
    monkeypatch.setattr(preflight, "GROUP", "no-such-group")
    assert preflight.accounts(2).seen == "0 in the group no-such-group; 2 wanted"
    assert preflight.as_a_learner().state == "warn" and preflight.disk(0).state == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try what a learner can do")
def test_the_pre_flight_does_as_a_learner_what_a_learner_does_first(monkeypatch, tmp_path, group):
    home = tmp_path / "home"
    group(home)
    assert "No such file or directory" in preflight.as_a_learner().seen
    home.mkdir()
    found = preflight.as_a_learner()
    assert found.state == "ok" and "built, ran and checked a kernel on host in " in found.seen and not list(home.iterdir())
    monkeypatch.setattr(preflight, "DISK_GIB", -1)  # no room: it is refused, as by a quota
    found = preflight.as_a_learner()
    assert found.state == "fail" and "OSError" in found.seen and not list(home.iterdir())
    monkeypatch.setattr(preflight.subprocess, "run", lambda *command, **more: SimpleNamespace(returncode=0, stdout="host\n"))
    monkeypatch.setattr(preflight.machine, "backend", lambda: "cuda")
    assert "runs kernels on host, root on cuda" in preflight.as_a_learner().seen


def test_the_pre_flight_wants_a_gpu_that_takes_more_than_one_process(monkeypatch):
    monkeypatch.setattr(preflight.machine, "backend", lambda: "cuda")
    monkeypatch.setattr(preflight.machine, "output", lambda *command: "Exclusive_Process")
    assert preflight.gpu_memory(2).advice == "nvidia-smi -c DEFAULT"


@pytest.mark.parametrize("days, state", [(30, "ok"), (1, "fail")])
def test_the_pre_flight_looks_at_the_certificate_and_at_the_port_that_browsers_reach(monkeypatch, tmp_path, days, state):
    monkeypatch.setenv("WORKSHOP_STATE", str(tmp_path))
    monkeypatch.setenv("WORKSHOP_URL", "http://127.0.0.1:8765")
    found = preflight.certificate()
    assert found.state == "warn" and "from this machine alone" in found.seen and preflight.public_port() == 8765
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([]), datetime.datetime.now(datetime.timezone.utc)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=days)).sign(
        key, hashes.SHA256())
    (tmp_path / "tls.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    assert preflight.certificate().state == "fail"  # no key
    (tmp_path / "tls.key").write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    assert preflight.certificate().state == state and preflight.public_port() == 443
    (tmp_path / "tls.crt").write_text("none")
    assert preflight.certificate().advice == "get both anew"


@pytest.mark.parametrize("states, status, last", [(["ok", "warn"], 0, "Ready for 3 learners."),
                                                  (["ok", "fail"], 1, "Not ready: looked at")])
def test_the_pre_flights_status_is_that_of_its_findings(monkeypatch, tmp_path, capsys, states, status, last):
    monkeypatch.setattr(preflight, "doctor", lambda: [])
    monkeypatch.setattr(preflight, "preflight",
                        lambda course, learners: [preflight.Finding("looked at", state, "seen", "advice") for state in states])
    assert command_line.main(["preflight", "--here", str(tmp_path), "--learners", "3"]) == status
    assert capsys.readouterr().out.splitlines()[-1] == last
