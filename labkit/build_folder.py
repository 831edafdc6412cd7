"""Where builds lie, and how processes and users share it: one builds, the others wait, and what is whole is there for all.

Only the standard library: the doctor looks at it where nothing else is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
from pathlib import Path
from typing import IO, Iterator

from labkit import REPOSITORY


def build_root() -> Path:
    """build/ of the repository, or the folder that LABKIT_BUILD names."""
    return Path(os.environ.get("LABKIT_BUILD") or REPOSITORY / "build")


@contextlib.contextmanager
def locked(made: Path, who: str = "") -> Iterator[None]:
    """Within, no other process or thread makes `made`: one builds and the others wait for it.

    who: what is built; where this has to wait, one line says so, with the number of the process that builds it.

    The lock is the kernel's own (flock): it goes with a process that is killed, so it is never stale. Raises OSError where the
    folder takes no file, or its file system no lock.
    """
    made.parent.mkdir(parents=True, exist_ok=True)
    with _opened(made.with_suffix(".lock")) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if who:
                print(f"{who}: process {lock.read().strip() or 'unknown'} builds it; waiting for that", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if lock.writable():
                lock.seek(0)
                lock.truncate()
                print(os.getpid(), file=lock, flush=True)
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough where this process was forked meanwhile


def _opened(path: Path) -> IO[str]:
    try:
        lock = open(path, "a+", encoding="utf-8")
    except PermissionError:
        if not path.exists():
            raise
        return open(path, encoding="utf-8")  # another user's, and a lock can be had on what can only be read
    lock.seek(0)
    return lock


def place_to_make(made: Path) -> Path:
    """A path beside `made` at which nothing is yet, to make it there and rename it when it is whole; inside `locked`.

    What killed builds have left goes. Their compilers may still run, so no two processes make a thing at the same path.
    """
    for left in made.parent.glob(f"{made.name}.*.work"):
        remove(left)
    return made.with_name(f"{made.name}.{os.getpid()}.work")


def remove(path: Path) -> None:
    """Removes a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def holders() -> dict[Path, int]:
    """{lock file: process} of the builds that are under way in the build root."""
    # glob's own functions, since folders may go while they look, which Path.glob does not bear
    found = [path for depth in ("*.lock", "*/*.lock") for path in glob.glob(f"{glob.escape(str(build_root()))}/{depth}")]
    return {Path(path): holder for path in found if (holder := _holder(Path(path)))}


def _holder(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # gone with the file that is closed
        except BlockingIOError:
            return int(lock.read())
    return None
