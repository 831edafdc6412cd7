"""The pre-flight of a workshop: what a teacher runs on its machine the day before. One line a finding, with a remedy."""

from __future__ import annotations

import contextlib
import grp
import io
import os
import shutil
import socket
import stat
import sys
from pathlib import Path

from labkit import REPOSITORY, exercises, machine
from labkit.build import BuildError, load
from labkit.diagnosis import Finding, doctor, show
from labkit.grading import grade

GROUP = "learners"  # whose members jupyterhub_config.py lets in
PORTS = {8000: "what browsers reach", 8001: "the proxy's", 8081: "the hub's"}
DISK_GIB, MEMORY_GIB, GPU_GIB = 0.5, 2.0, 2.0  # for each learner: copies and builds; kernel and compiler; context and tensors
PROGRAMS = {"jupyterhub": "python -m pip install -r workshop/requirements.txt",
            "nbgrader": "python -m pip install -r workshop/requirements.txt",
            "configurable-http-proxy": "npm install -g configurable-http-proxy"}


def tell(course: Path, learners: int) -> int:
    """Prints what the doctor finds, and below it what this many learners need beside; returns 1 where anything fails."""
    findings = doctor() + (ours := preflight(course, learners))
    show(ours)
    wrong = [finding.what for finding in findings if finding.state == "fail"]
    print(f"Not ready: {', '.join(wrong)}" if wrong else f"Ready for {learners} learners.")
    return 1 if wrong else 0


def preflight(course: Path, learners: int) -> list[Finding]:
    """The findings. course: the folder that `python -m labkit assignments` has made. learners: how many at once."""
    return [operators(), answers(), disk(learners), memory(learners), gpu_memory(learners), reachable(), read_only(),
            programs(), accounts(learners), assignments(course), exchange(course), ports()]


def operators() -> Finding:
    """Every operator that an exercise builds on, built here."""
    needed = sorted({exercises.read(name).operator for name in exercises.names()})
    for name in needed:
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # what it builds
                load(name)
        except BuildError as error:
            return Finding("operators", "fail", str(error).splitlines()[0], "mend that first: python3 -m labkit doctor")
    return Finding("operators", "ok", f"{', '.join(needed)} built for {machine.backend()}")


def answers() -> Finding:
    """Every solution, which has to pass, and every starter, which may not. What they build is then there for the graders."""
    names = exercises.names()
    for name in names:
        asked = exercises.read(name)
        with contextlib.redirect_stdout(io.StringIO()):
            good, bad = (grade(name, file, show=False) for file in (asked.solution, asked.starter))
        if not good.passed:
            advice = "python3 -m labkit test -k exercise"
            if good.failed.check == "time":
                advice = "end what else uses this GPU, and try again"
            failed = good.failed
            return Finding("answers", "fail", f"the solution of {name} fails at {failed.check}: {failed.words}", advice)
        if bad.passed:
            return Finding("answers", "fail", f"the starter of {name} passes", "derive it anew: python3 -m labkit exercises")
    return Finding("answers", "ok", f"{len(names)} solutions pass, and {len(names)} starters fail")


def disk(learners: int) -> Finding:
    """Room for the learners' files."""
    home = Path("/home") if Path("/home").is_dir() else Path("/")
    free, needed = shutil.disk_usage(home).free / 2**30, DISK_GIB * learners
    return _enough("disk for learners", free, needed, f"in {home}", "free some, or put the homes elsewhere")


def memory(learners: int) -> Finding:
    """Memory for a kernel and a compiler of each."""
    free = machine.free_memory()
    if free is None:
        return Finding("memory for learners", "warn", "the system does not tell what is free", "look at it with: free -g")
    return _enough("memory for learners", free, MEMORY_GIB * learners, "", "take a larger machine, or pairs at one account")


def gpu_memory(learners: int) -> Finding:
    """The GPU's memory for a context and tensors of each."""
    if machine.backend() != "cuda":
        return Finding("GPU for learners", "ok", "none: the labs run on the host backend")
    import torch

    free = torch.cuda.mem_get_info()[0] / 2**30
    return _enough("GPU for learners", free, GPU_GIB * learners, "on the GPU", "end what else uses it, or take a larger one")


def _enough(what: str, free: float, needed: float, where: str, advice: str) -> Finding:
    seen = f"{free:.1f} GiB free {where}".rstrip() + f"; {needed:.0f} GiB wanted"
    return Finding(what, "ok", seen) if free >= needed else Finding(what, "fail", seen, advice)


def reachable() -> Finding:
    """Whether learners can enter the folders of the repository and of this Python."""
    for place in (REPOSITORY, Path(sys.executable), Path(sys.executable).resolve()):
        for folder in (place, *place.parents):
            if not folder.stat().st_mode & stat.S_IXOTH:
                return Finding("reachable", "fail", f"learners cannot enter {folder}, which {place} needs",
                               "put both where all can read, such as /opt, with a Python of the system")
    return Finding("reachable", "ok", f"{REPOSITORY} and its Python")


def read_only(root: Path = REPOSITORY) -> Finding:
    """Whether what all learners load can be written by none of them: who could would run code as the others."""
    places = [Path(folder, name) for folder, folders, files in os.walk(root) for name in (*folders, *files)]
    for path in (root, *places):
        if not path.is_symlink() and path.stat().st_mode & (stat.S_IWOTH | stat.S_IWGRP) & ~_own_group(path):
            return Finding("read-only", "fail", f"{path} can be written by others than its owner", f"chmod -R go-w {root}")
    return Finding("read-only", "ok", f"nothing in {root} can be written by learners")


def _own_group(path: Path) -> int:
    """The right of the group does not count where its only member is root."""
    return stat.S_IWGRP if path.stat().st_gid == 0 else 0


def programs() -> Finding:
    """JupyterHub, its proxy and nbgrader: on PATH, or beside this Python."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    absent = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    if absent:
        return Finding("programs", "fail", f"missing: {', '.join(absent)}", PROGRAMS[absent[0]])
    return Finding("programs", "ok", ", ".join(PROGRAMS))


def accounts(learners: int) -> Finding:
    """The members of the group that may log in."""
    try:
        members = grp.getgrnam(GROUP).gr_mem
    except KeyError:
        members = []
    seen = f"{len(members)} in the group {GROUP}"
    return Finding("accounts", "ok", seen) if len(members) >= learners else Finding(
        "accounts", "fail", f"{seen}; {learners} wanted", f"groupadd -f {GROUP}; useradd -m -G {GROUP} NAME; passwd NAME")


def assignments(course: Path) -> Finding:
    """Whether nbgrader finds the course, and of each lab that has exercises a release that belongs to them."""
    labs = list(dict.fromkeys(exercises.read(name).lab for name in exercises.names()))
    if not (course / "nbgrader_config.py").is_file():
        return Finding("assignments", "fail", f"{course} is no course's folder", f"python3 -m labkit assignments {course}")
    if course.stat().st_mode & 0o077:
        return Finding("assignments", "fail", f"{course}, with all answers, is open to others", f"chmod 700 {course}")
    for kind, advice in (("source", f"python3 -m labkit assignments {course}"),
                         ("release", f"cd {course} && nbgrader generate_assignment {{lab}}")):
        if absent := [lab for lab in labs if not (course / kind / lab / f"{lab}.ipynb").is_file()]:
            return Finding("assignments", "fail", f"no {kind} of {', '.join(absent)}", advice.format(lab=absent[0]))
    return Finding("assignments", "ok", f"{len(labs)} of {settings(course).coursedir.course_id!r}: {', '.join(labs)}")


def exchange(course: Path) -> Finding:
    """The folder through which assignments go out and answers come in, as nbgrader's settings name it."""
    from nbgrader.exchange.default import Exchange

    root = Path(Exchange(parent=settings(course)).root)
    if not root.is_dir() or root.stat().st_mode & 0o1777 != 0o1777:
        return Finding("exchange", "fail", f"{root} is not there, or not open to all", f"mkdir -p {root} && chmod 1777 {root}")
    return Finding("exchange", "ok", str(root))


def settings(course: Path):
    """nbgrader, not started, with the settings that it finds in this folder."""
    from nbgrader.apps import NbGrader

    found = NbGrader()
    found.initialize(["--log-level=ERROR"], root=str(course))
    return found


def ports() -> Finding:
    """Whether JupyterHub's ports are free; it takes them when it starts."""
    for port, whose in PORTS.items():
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError as error:
                return Finding("ports", "fail", f"{port}, {whose}: {error.strerror}",
                               f"end what has it: ss -ltnp 'sport = :{port}'")
    return Finding("ports", "ok", f"{', '.join(map(str, PORTS))} are free")
