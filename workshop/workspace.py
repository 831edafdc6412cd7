"""Makes a learner's workspace, and runs a command in it: python workspace.py COMMAND...

It runs as the learner, so it can do nothing that the learner could not. The home folder is closed to others. In it is
kernel-to-gradient, with

    labs    copies of the labs; one that is there is left as it is
    work    the files of exercises (LABKIT_WORK)

and in .cache a folder of the same name with builds (LABKIT_BUILD): links to those of the repository, and beside them the
learner's own.

Builds are shared by links, since labkit builds, locks and removes in one folder: what the repository has is found at once and
can only be read, and what a learner builds, such as an answer, nobody else loads.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from labkit.build_folder import KEPT  # noqa: E402


def main(arguments: list[str]) -> None:
    """Sets the environment and the limits, and becomes the command."""
    home = Path.home()
    place, builds = home / "kernel-to-gradient", home / ".cache" / "kernel-to-gradient"
    os.umask(0o077)
    if home.stat().st_uid == os.geteuid():  # a volume of a pod is root's, and lent to one pod alone
        home.chmod(0o700)
    copy_labs(REPOSITORY / "labs", place / "labs")
    link_builds(REPOSITORY / "build", builds)
    (place / "work").mkdir(exist_ok=True)
    limit_memory(os.environ.get("MEM_LIMIT"))
    os.environ.update(LABKIT_WORK=str(place / "work"), LABKIT_BUILD=str(builds),
                      PYTHONPATH=str(REPOSITORY), PYTHONDONTWRITEBYTECODE="1",
                      JUPYTER_RUNTIME_DIR=str(home / ".run"))  # the name of a kernel's socket may have 107 characters in all
    os.chdir(place)  # where nbgrader fetches to
    os.execvp(arguments[0], arguments)


def copy_labs(source: Path, target: Path) -> None:
    """Copies what is not there yet: a lab that the learner has run or edited stays."""
    for path in sorted(source.rglob("*")):
        copied = target / path.relative_to(source)
        if path.is_file() and not copied.exists() and not {"__pycache__", ".ipynb_checkpoints"} & set(path.parts):
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copied)


def link_builds(source: Path, target: Path) -> None:
    """Links each build of `source` at the same place in `target`; links to what is no longer there go."""
    target.mkdir(parents=True, exist_ok=True)
    for link in [*target.glob("*"), *target.glob("*/*")]:
        if link.is_symlink() and not link.exists():
            link.unlink()
    for path in filter(lambda path: KEPT.fullmatch(path.name), [*source.glob("*"), *source.glob("*/*")]):
        link = target / path.relative_to(source)
        if not os.path.lexists(link):
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(path)


def limit_memory(limit: str | None) -> None:
    """Limits what each process may allocate, in bytes, where nothing limits the learner as a whole.

    JupyterHub only names the limit, in MEM_LIMIT; it is systemd or Kubernetes that enforce it, and then this does nothing worse
    than they. A process that would take more gets MemoryError. A learner with many processes is not held by it.
    """
    if limit and limit.isdigit() and int(limit):
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))


if __name__ == "__main__":
    main(sys.argv[1:])
