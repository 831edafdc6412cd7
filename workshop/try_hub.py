"""Plays a class on the machine of a course: python workshop/try_hub.py --learners 4, as root.

It makes accounts, a course and an exchange of its own, starts JupyterHub by jupyterhub_config.py on loopback, and all come at
once: they log in, fetch a lab, answer it, each in another way, run it and submit; nbgrader collects, grades and tells them; in
between each tries to reach what is another's. Whatever it made is removed again. The exit status is 1 where anything was not as
it has to be.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator

WORKSHOP = Path(__file__).resolve().parent
REPOSITORY = WORKSHOP.parent
sys.path[:0] = [str(REPOSITORY), str(WORKSHOP)]

import requests  # noqa: E402
from hub_learner import Kernel, Learner  # noqa: E402

from labkit import assignments, dashboard, exercises, preflight  # noqa: E402

COURSE, GROUP = "kernel-to-gradient", "learners"
PLACE = Path("/srv")  # not /tmp: under systemd each learner has one of their own
failed: list[str] = []


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", type=int, default=4, metavar="N", help="how many come at once (4 when left out)")
    parser.add_argument("--lab", default="08_sync_pitfalls", help="whose exercises they do (08_sync_pitfalls when left out)")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        parser.error("it makes accounts: run it as root")
    for finding in (preflight.reachable(), preflight.read_only(), preflight.programs()):
        if finding.state == "fail":
            parser.error(f"{finding.what}: {finding.seen}. To mend it: {finding.advice}")
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="try-hub-", dir=PLACE) as made:
        place = Path(made)
        place.chmod(0o711)
        with accounts(place, options.learners) as passwords, course(place, options.lab), hub(place, options.learners) as url:
            play(place, url, options.lab, passwords)
    print(f"Not as it has to be: {len(failed)}" if failed else "All as it has to be.")
    return 1 if failed else 0


def play(place: Path, url: str, lab: str, passwords: dict[str, str]) -> None:
    """A class, from the first login to the feedback."""
    file, answers = f"{lab}/{lab}.ipynb", dict(zip(passwords, answers_to(place, lab, len(passwords))))
    with ThreadPoolExecutor(len(passwords)) as pool:
        begun = time.monotonic()
        learners = list(pool.map(lambda name: Learner(url, name, passwords[name]), passwords))
        expect("all servers run at once", all(one.ask("GET", "api/status").json()["started"] for one in learners),
               f"{len(learners)}, {time.monotonic() - begun:.0f} s after the first login")

        def answer(one: Learner) -> list[str]:
            one.nbgrader("fetch", COURSE, lab)
            return one.work_through(file, answers[one.name].cells)

        begun = time.monotonic()
        for one, printed in zip(learners, pool.map(answer, learners)):
            expect(f"{one.name} answers with {answers[one.name].what}", answers[one.name].seen_in("\n".join(printed)),
                   (printed[-1].splitlines() or ["nothing"])[-1])
        print(f"    the lab took {time.monotonic() - begun:.0f} s")
        list(pool.map(lambda one: one.nbgrader("submit", COURSE, lab), learners))
        forged = place / "exchange" / COURSE / "inbound" / f"{learners[0].name}+{lab}+2099-01-01 09:00:00 UTC"
        with Kernel(learners[-1], file) as kernel:  # who has one learner alone sees their own answer come later
            kernel.run(f"import shutil; shutil.copytree('.', {str(forged)!r})")
        expect("somebody hands in under another's name", forged.is_dir(), forged.name)
        for one in learners:
            is_kept_out(one, [other for other in learners if other is not one], place, lab)

        begun = time.monotonic()
        for command in ("collect", "autograde", "generate_feedback", "release_feedback"):
            nbgrader(place, command, lab)
        print(f"    collecting, grading and feedback took {time.monotonic() - begun:.0f} s")
        found = dashboard.passed(place / "course" / "gradebook.db")
        print("\n".join("    " + line for line in [*found.to_string().splitlines(), dashboard.summary(found)]))
        for one in learners:
            wanted = dashboard.PASSED if answers[one.name].right else dashboard.TRIED
            expect(f"{one.name} is graded", set(found.loc[one.name, lab]) == {wanted}, found.loc[one.name, lab].to_dict())
            one.nbgrader("fetch_feedback", COURSE, lab)
            with Kernel(one, file) as kernel:
                told = kernel.run(f"import glob; print(*(open(page).read() for page in glob.glob('feedback/*/{lab}.html')))")
            expect(f"{one.name} gets feedback", answers[one.name].seen_in(told), f"{len(told):,} characters of HTML")
            graded = (place / "course" / "autograded" / one.name / lab / f"{lab}.ipynb").read_text(encoding="utf-8")
            for reached, user in re.findall(r"reached: (\[.*?\]) as (\d+)", graded):
                expect(f"{one.name}'s answer reached nothing when it was graded", reached == "[]" and user != "0",
                       f"{reached} as user {user}")
                expect("what it started has ended", not processes_of(user), f"nothing runs as user {user}")


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one hands in. cells: {cell id: text}. right: whether it has to pass."""

    what: str
    right: bool
    cells: dict[str, str]

    def seen_in(self, printed: str) -> bool:
        return ("Think of this" in printed) != self.right and (": passed" in printed) == self.right


def answers_to(place: Path, lab: str, count: int) -> Iterator[Answer]:
    """The solution; the starter as it came; one that reaches for the grades; then wrong ones, from the first to the last."""
    asked = [exercises.read(name) for name in exercises.names(lab)]
    yield Answer("the solution", True, {f"{one.name}-answer": f"%%writefile {one.name}.cu\n{text_of(one)}" for one in asked})
    yield Answer("the starter", False, {})
    course = place / "course"
    wanted = [str(path) for path in (course, course / "gradebook.db", course / "submitted", Path.home(), place / "state")]
    yield Answer("one that reaches for the grades", False, {f"{one.name}-answer": f"""\
import os, subprocess
reached = []
for path in {wanted + ["..", "../..", "../../../gradebook.db"]}:
    try:
        reached.append((path, os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(9)))
    except (PermissionError, FileNotFoundError):
        pass
reached = [found for found in reached if "submitted" in str(found) or "SQLite" in str(found) or found[0][:1] == "/"]
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("reached:", reached, "as", os.getuid())
open("{one.name}.cu", "w").write({one.starter.read_text(encoding='utf-8')!r})""" for one in asked})
    for number in range(count - 3):
        wrong = [(one, one.wrong[number % len(one.wrong)]) for one in asked]
        yield Answer(f"a wrong one: {wrong[0][1].what}", False, {
            f"{one.name}-answer": f"%%writefile {one.name}.cu\n{text_of(one, given.change)}" for one, given in wrong})


def text_of(asked: exercises.Exercise, change: dict[str, str] | None = None) -> str:
    """The solution, with {old: new} of a wrong answer."""
    text = asked.solution.read_text(encoding="utf-8")
    for old, new in (change or {}).items():
        text = text.replace(old, new)
    return text


def is_kept_out(one: Learner, others: list[Learner], place: Path, lab: str) -> None:
    """Whether a learner can reach what is another's, or everybody's: from the kernel, and from the hub."""
    build = next((REPOSITORY / "build").glob("*/*-*/"), REPOSITORY / "build")
    reads = [place / "course", place / "course" / "gradebook.db", place / "state", place / "state" / "cookie_secret",
             place / "exchange" / COURSE / "inbound"]
    for other in others:
        home = place / "home" / other.name
        reads += [home, home / "kernel-to-gradient" / lab / f"{lab}.ipynb", home / ".cache", home / ".local",
                  *(Path("/proc", str(process), "environ") for process in processes_of(other.name))]
    writes = [REPOSITORY, REPOSITORY / "labkit", REPOSITORY / "build", build, place / "exchange" / COURSE / "outbound",
              *(place / "home" / other.name for other in others)]
    with Kernel(one, f"{lab}/{lab}.ipynb") as kernel:
        told = kernel.run(f"""\
import os
refused = 0
def tried(what, path, mode):
    global refused
    try:
        os.listdir(path) if mode == "r" and os.path.isdir(path) else open(path, mode).close()
        print(what, path)
    except PermissionError:
        refused += 1
    except FileNotFoundError:
        if path.startswith("/proc/"):  # it has just ended
            refused += 1
        else:
            print("found no", path)
for path in {[str(path) for path in reads]}:
    tried("read", path, "r")
for folder in {[str(path) for path in writes]}:
    tried("wrote", folder + "/planted.so", "w")
print("refused:", refused)
""")
    expect(f"{one.name} reaches nothing of the others", told.strip() == f"refused: {len(reads) + len(writes)}", told.strip())
    refused = [one.ask("GET", path, whose=other.name, check=False).status_code for other in others
               for path in ("api/status", "api/contents", "api/kernels")]
    expect(f"{one.name} is refused at the others' servers", set(refused) <= {302, 403, 404}, f"{sorted(set(refused))}")


def expect(what: str, holds: bool, seen: object) -> None:
    print(f"  {'ok  ' if holds else 'FAIL'} {what}: {seen}", flush=True)
    if not holds:
        failed.append(what)


@contextlib.contextmanager
def accounts(place: Path, count: int) -> Iterator[dict[str, str]]:
    """{name: password} of accounts that are new, whose homes lie in `place`."""
    (place / "home").mkdir(mode=0o711)
    new_group = subprocess.run(["getent", "group", GROUP], stdout=subprocess.DEVNULL).returncode != 0
    if new_group:
        call("groupadd", GROUP)
    passwords = {f"try-hub-{secrets.token_hex(2)}-{number}": secrets.token_urlsafe() for number in range(1, count + 1)}
    made = []
    try:
        for name, password in passwords.items():
            call("useradd", "--create-home", "--base-dir", str(place / "home"), "--groups", GROUP, "--shell", "/bin/bash", name)
            made.append(name)
            call("chpasswd", input=f"{name}:{password}")
        yield passwords
    finally:
        for name in made:
            for process in processes_of(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            subprocess.run(["userdel", "--remove", name], stderr=subprocess.DEVNULL)
        if new_group:
            call("groupdel", GROUP)


def processes_of(user: str) -> list[int]:
    return list(map(int, subprocess.run(["pgrep", "-u", user], capture_output=True, text=True).stdout.split()))


@contextlib.contextmanager
def course(place: Path, lab: str) -> Iterator[None]:
    """A course's folder with this lab released, and the exchange."""
    (place / "exchange").mkdir()
    (place / "exchange").chmod(0o1777)
    with contextlib.redirect_stdout(None):
        assignments.write(place / "course")
    for command in ("generate_assignment", "release_assignment"):
        nbgrader(place, command, lab)
    yield


def nbgrader(place: Path, command: str, lab: str) -> None:
    call(sys.executable, "-m", "nbgrader", command, lab, cwd=place / "course", env=environment(place))


@contextlib.contextmanager
def hub(place: Path, learners: int) -> Iterator[str]:
    """JupyterHub, by the configuration of a workshop, at the address that is given."""
    url, own, proxy = (f"http://127.0.0.1:{port}" for port in free_ports(3))
    log = place / "hub.log"
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub", "-f", WORKSHOP / "jupyterhub_config.py", f"--JupyterHub.hub_bind_url={own}",
             f"--ConfigurableHTTPProxy.api_url={proxy}"], cwd=place, stdout=out, stderr=out, start_new_session=True,
            env={**environment(place), "WORKSHOP_URL": url, "WORKSHOP_LEARNERS": str(learners)})
    try:
        for _ in range(60):
            with contextlib.suppress(requests.ConnectionError):
                if requests.get(f"{url}/hub/api", timeout=5).ok:
                    break
            time.sleep(1)
        yield url
    except BaseException:
        print(log.read_text(encoding="utf-8")[-6000:], file=sys.stderr)
        raise
    finally:
        process.send_signal(signal.SIGTERM)  # it ends the servers and the proxy
        process.wait(60)


def environment(place: Path) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY), "WORKSHOP_EXCHANGE": str(place / "exchange"),
            "WORKSHOP_STATE": str(place / "state")}


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def call(*command: str, **more) -> None:
    """Runs a command; RuntimeError with what it said where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
