"""The pre-flight of a workshop: what a teacher runs on its machine the day before. One line a finding, with a remedy."""

from __future__ import annotations

import contextlib
import datetime
import grp
import importlib.util
import io
import os
import pwd
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from labkit import REPOSITORY, exercises, machine
from labkit.build import BuildError, load
from labkit.diagnosis import doctor
from labkit.findings import Finding, show
from labkit.grading import grade

GROUP = "learners"  # whose members jupyterhub_config.py lets in
PORTS = {8001: "the proxy's", 8081: "the hub's"}  # beside the one that browsers reach
STATE = "/srv/jupyterhub"  # where jupyterhub_config.py keeps what WORKSHOP_STATE does not name elsewhere
DISK_GIB, MEMORY_GIB, GPU_GIB = 0.5, 2.0, 2.0  # for each learner: copies and builds; kernel and compiler; context and tensors
LIMIT_GIB = 6  # what jupyterhub_config.py lets a learner have
KEPT = ("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV")  # of the teacher's environment; the hub passes no more on
PROGRAMS = {"jupyterhub": "python -m pip install -r workshop/requirements.txt",
            "nbgrader": "python -m pip install -r workshop/requirements.txt",
            "configurable-http-proxy": "npm install -g configurable-http-proxy@5"}


def tell(course: Path, learners: int) -> int:
    """Prints what the doctor finds, and below it what this many learners need beside; returns 1 where anything fails."""
    findings = doctor() + (ours := preflight(course, learners))
    show(ours)
    wrong = [finding.what for finding in findings if finding.state == "fail"]
    print(f"Not ready: {', '.join(wrong)}" if wrong else f"Ready for {learners} learners.")
    return 1 if wrong else 0


def preflight(course: Path, learners: int) -> list[Finding]:
    """The findings. course: the folder that `python -m labkit assignments` has made. learners: how many at once."""
    return [operators(), answers(), disk(learners), memory(learners), limits(), gpu_memory(learners), reachable(), read_only(),
            programs(), accounts(learners), as_a_learner(), assignments(course), exchange(course), certificate(), ports()]


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
    """Room for the learners' files, where the homes are."""
    home = next((Path(one.pw_dir) for one in members()), Path("/home"))
    home = next(path for path in (home, *home.parents) if path.is_dir())
    free, needed = shutil.disk_usage(home).free / 2**30, DISK_GIB * learners
    return _enough("disk for learners", free, needed, f"in {home}", "free some, or put the homes elsewhere")


def memory(learners: int) -> Finding:
    """Memory for a kernel and a compiler of each."""
    free = machine.free_memory()
    if free is None:
        return Finding("memory for learners", "warn", "the system does not tell what is free", "look at it with: free -g")
    return _enough("memory for learners", free, MEMORY_GIB * learners, "", "take a larger machine, or pairs at one account")


def limits() -> Finding:
    """Who holds a learner to the memory that the hub grants."""
    if Path("/run/systemd/system").is_dir() and importlib.util.find_spec("systemdspawner"):
        return Finding("limits", "ok", "systemd limits each learner as a whole")
    return Finding("limits", "warn", "each process is limited by itself: a learner with many takes more",
                   "where systemd runs: python -m pip install -r workshop/requirements.txt")


def gpu_memory(learners: int) -> Finding:
    """The GPU's memory for a context and tensors of each."""
    if machine.backend() != "cuda":
        return Finding("GPU for learners", "ok", "none: the labs run on the host backend")
    if "Exclusive" in (machine.output("nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader") or ""):
        return Finding("GPU for learners", "fail", "it takes one process at a time (compute mode)", "nvidia-smi -c DEFAULT")
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
    """JupyterHub, its proxy and nbgrader: on PATH, or beside this Python; and whether the proxy starts."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    absent = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    if absent:
        return Finding("programs", "fail", f"missing: {', '.join(absent)}", PROGRAMS[absent[0]])
    if machine.output(proxy := shutil.which("configurable-http-proxy", path=path), "--version") is None:
        return Finding("programs", "fail", f"{proxy} does not start", "get Node 20 or newer, from nodejs.org, and try again")
    return Finding("programs", "ok", ", ".join(PROGRAMS))


def members() -> list[pwd.struct_passwd]:
    """The accounts in the group that may log in."""
    try:
        names = grp.getgrnam(GROUP).gr_mem
    except KeyError:
        return []
    found = []
    for name in names:
        with contextlib.suppress(KeyError):  # it was removed, and the group has not noticed
            found.append(pwd.getpwnam(name))
    return found


def accounts(learners: int) -> Finding:
    """As many as will come, each with a password."""
    found = members()
    seen = f"{len(found)} in the group {GROUP}"
    if len(found) < learners:
        return Finding("accounts", "fail", f"{seen}; {learners} wanted",
                       f"groupadd -f {GROUP}; useradd -m -s /bin/bash -G {GROUP} NAME; passwd NAME")
    # Says nothing of an account that is kept elsewhere than on this machine.
    states = {one.pw_name: (machine.output("passwd", "-S", one.pw_name) or "").split()[1:2] for one in found}
    if without := [name for name, state in states.items() if state in (["L"], ["LK"], ["NP"])]:
        return Finding("accounts", "fail", f"{seen}; without a password: {', '.join(without)}", f"passwd {without[0]}")
    return Finding("accounts", "ok", seen)


def as_a_learner() -> Finding:
    """What the first of them does first, within a learner's limits: a workspace, a build from nothing, a kernel that runs."""
    what = "as a learner"
    if not (found := members()):
        return Finding(what, "warn", f"nobody is in the group {GROUP}", "see accounts")
    if os.geteuid() != 0:
        return Finding(what, "warn", "only root can try what a learner can do", "run the pre-flight as root")
    one, begun = found[0], time.monotonic()
    environment = {name: os.environ[name] for name in KEPT if name in os.environ} | {
        "HOME": one.pw_dir, "USER": one.pw_name, "LOGNAME": one.pw_name, "MEM_LIMIT": str(LIMIT_GIB * 2**30)}
    try:
        done = subprocess.run([sys.executable, REPOSITORY / "workshop" / "try_account.py", str(int(DISK_GIB * 2**30))], cwd="/",
                              env=environment, user=one.pw_uid, group=one.pw_gid, timeout=600, capture_output=True, text=True,
                              extra_groups=os.getgrouplist(one.pw_name, one.pw_gid), stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(what, "fail", f"{one.pw_name}: {error}", "mend that first; what the doctor says holds for root alone")
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        return Finding(what, "fail", f"{one.pw_name}: {said[-1]}", f"try it: su {one.pw_name}; then the labs' first cells")
    backend = done.stdout.split()[-1]
    if backend != machine.backend():
        return Finding(what, "fail", f"{one.pw_name} runs kernels on {backend}, root on {machine.backend()}",
                       f"ls -l /dev/nvidia*, and for their group: usermod -aG GROUP {one.pw_name}")
    seconds = time.monotonic() - begun
    return Finding(what, "ok", f"{one.pw_name} built, ran and checked a kernel on {backend} in {seconds:.0f} s")


def assignments(course: Path) -> Finding:
    """Whether nbgrader finds the course, and of each lab that has exercises a release that belongs to them."""
    labs = _labs()
    if not (course / "nbgrader_config.py").is_file():
        return Finding("assignments", "fail", f"{course} is no course's folder", f"python3 -m labkit assignments {course}")
    if course.stat().st_mode & 0o077:
        return Finding("assignments", "fail", f"{course}, with all answers, is open to others", f"chmod 700 {course}")
    for kind, advice in (("source", f"python3 -m labkit assignments {course}"),
                         ("release", f"cd {course} && for lab in {' '.join(labs)}; do nbgrader generate_assignment $lab && "
                                     "nbgrader release_assignment $lab; done")):
        if absent := [lab for lab in labs if not (course / kind / lab / f"{lab}.ipynb").is_file()]:
            return Finding("assignments", "fail", f"no {kind} of {', '.join(absent)}", advice)
    return Finding("assignments", "ok", f"{len(labs)} of {settings(course).coursedir.course_id!r}: {', '.join(labs)}")


def _labs() -> list[str]:
    return list(dict.fromkeys(exercises.read(name).lab for name in exercises.names()))


def exchange(course: Path) -> Finding:
    """The folder through which assignments go out and answers come in, and whether all of them have gone out."""
    from nbgrader.exchange.default import Exchange

    found = settings(course)
    root = Path(Exchange(parent=found).root)
    if not root.is_dir() or root.stat().st_mode & 0o1777 != 0o1777:
        return Finding("exchange", "fail", f"{root} is not there, or not open to all", f"mkdir -p {root} && chmod 1777 {root}")
    released = root / found.coursedir.course_id / "outbound"
    if absent := [lab for lab in _labs() if not (released / lab / f"{lab}.ipynb").is_file()]:
        return Finding("exchange", "fail", f"learners cannot fetch {', '.join(absent)}",
                       f"cd {course} && nbgrader release_assignment {absent[0]}")
    return Finding("exchange", "ok", str(root))


def settings(course: Path):
    """nbgrader, not started, with the settings that it finds in this folder."""
    from nbgrader.apps import NbGrader

    found = NbGrader()
    found.initialize(["--log-level=ERROR"], root=str(course))
    return found


def certificate() -> Finding:
    """Whether browsers reach the hub by an encrypted connection, tomorrow too."""
    state = Path(os.environ.get("WORKSHOP_STATE", STATE))
    own, key = state / "tls.crt", state / "tls.key"
    if not own.exists():
        return Finding("certificate", "warn", f"no {own}: the hub is reached from this machine alone",
                       "get one, or let learners open a tunnel; jupyterhub_config.py says how")
    from cryptography import x509  # JupyterHub brings it

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(own, key)
        ends = x509.load_pem_x509_certificate(own.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:  # ssl's errors are OSErrors
        return Finding("certificate", "fail", f"{own} and {key}: {error}", "get both anew")
    left = ends - datetime.datetime.now(datetime.timezone.utc)
    if left < datetime.timedelta(days=2):
        return Finding("certificate", "fail", f"{own} is valid until {ends:%Y-%m-%d %H:%M} UTC", "certbot renew")
    return Finding("certificate", "ok", f"valid until {ends:%Y-%m-%d}")


def public_port() -> int:
    """What browsers reach, as jupyterhub_config.py has it."""
    if (Path(os.environ.get("WORKSHOP_STATE", STATE)) / "tls.crt").exists():
        return 443
    return urlsplit(os.environ.get("WORKSHOP_URL", "")).port or 8000


def ports() -> Finding:
    """Whether JupyterHub's ports are free; it takes them when it starts."""
    wanted = {public_port(): "what browsers reach", **PORTS}
    for port, whose in wanted.items():
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError as error:
                return Finding("ports", "fail", f"{port}, {whose}: {error.strerror}",
                               f"end what has it: ss -ltnp 'sport = :{port}'")
    return Finding("ports", "ok", f"{', '.join(map(str, wanted))} are free")
