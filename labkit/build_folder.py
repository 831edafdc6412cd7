"""Where builds lie, and how processes and users share it: one builds, the others wait, what is whole is there for all, and what
nobody loads any more goes.

Only the standard library: the doctor looks at it where nothing else is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import IO, Callable, Iterator

from labkit import REPOSITORY

UNUSED_DAYS = 30
# What `load` keeps: the folder of a build, an object, a parsed header. Whatever else lies there is not ours to remove.
KEPT = re.compile(r"(?:cuda|host|trace|parsed)-[0-9a-f]{12}|(?:tracer|binding-\w+)-[0-9a-f]{12}\.o")


def build_root() -> Path:
    """build/ of the repository, or the folder that LABKIT_BUILD names: seen from the repository, where that is no whole path,
    so that it stays the same when a program changes its folder, as labs do. A ~ that no shell has seen is the home as well;
    ValueError where that home is not known.
    """
    named = os.environ.get("LABKIT_BUILD") or "build"
    try:
        return REPOSITORY / Path(named).expanduser()
    except RuntimeError:
        raise ValueError(f"LABKIT_BUILD is {named!r}, and that home folder is not known; name the folder by its whole path, or "
                         "unset LABKIT_BUILD") from None


@contextlib.contextmanager
def locked(made: Path, who: str = "", wait: bool = True) -> Iterator[None]:
    """Within, no other process or thread makes `made`: one builds and the others wait for it.

    who: what is built; where this has to wait, one line says so, with the number of the process that builds it. wait: else
    BlockingIOError is raised where another has it.

    The lock is the kernel's own (flock): it goes with a process that is killed, so it is never stale. Raises OSError where the
    folder takes no file, or its file system no lock.
    """
    made.parent.mkdir(parents=True, exist_ok=True)
    with _opened(made.with_suffix(".lock")) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise
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


@contextlib.contextmanager
def whole_or_not_at_all(made: Path) -> Iterator[Path]:
    """A path beside `made` at which nothing is yet, to make it there: it becomes `made` where the block ends well, else it
    goes. `is_whole` then knows it. Inside `locked`.

    What killed builds have left goes too. Their compilers may still run, so no two processes make a thing at the same path.
    """
    for left in made.parent.glob(f"{glob.escape(made.name)}.*.work"):
        remove(left)
    work = made.with_name(f"{made.name}.{os.getpid()}.work")
    try:
        yield work
        files = [work] if work.is_file() else [path for path in work.rglob("*") if path.is_file()]
        _noted(made).write_text(json.dumps({str(path.relative_to(work)): path.stat().st_size for path in files}))
        work.rename(made)
    finally:
        remove(work)


def is_whole(made: Path) -> bool:
    """Whether `made` is there, and each of its files as long as when it was made. A full disk, a power failure and a copy that
    broke off leave less, and to load half a library ends the process.
    """
    try:
        noted = json.loads(_noted(made).read_bytes())
        return bool(noted) and all((made / name).stat().st_size == size for name, size in noted.items())
    except (OSError, ValueError):  # it is not there, or what was noted is no more whole
        return False


def _noted(made: Path) -> Path:
    """Where the lengths of the files of `made` are kept: beside it, as a file has room for nothing else."""
    return made.with_name(f"{made.name}.sizes")


def made_once(made: Path, make: Callable[[Path], object]) -> Path:
    """`made`, which is there and whole, or else is made at the path that `make` is given, by one process while others wait."""
    with locked(made):
        if not is_whole(made):
            remove(made)
            with whole_or_not_at_all(made) as work:
                make(work)
        note_use(made)
    return made


def note_use(kept: Path) -> None:
    """Dates what is used now. Where that is refused, as for another user's, the date at which the system says that it was last
    read has to do.
    """
    with contextlib.suppress(OSError):
        os.utime(kept)


def remove_unused(root: Path) -> None:
    """Removes from a build root what this user has built there and nobody has used for UNUSED_DAYS, unless it is locked.

    A process that has it loaded keeps it, and one that is about to load it finds it whole or not at all, and builds it again.
    A lock's file stays: another may wait at it.
    """
    for kept in _found(root, "*"):
        with contextlib.suppress(OSError):  # it has just gone, is locked, or may not be written here
            if KEPT.fullmatch(kept.name) and kept.stat().st_uid == os.geteuid() and _is_unused(kept):
                with locked(kept, wait=False):
                    if _is_unused(kept):
                        aside = kept.with_name(f"{kept.name}.{os.getpid()}.work")
                        kept.rename(aside)
                        remove(_noted(kept))
                        remove(aside)


def _is_unused(kept: Path) -> bool:
    # A folder's own date of reading is that of this look.
    files = map(os.stat, kept.iterdir() if kept.is_dir() else [kept])
    dates = [kept.stat().st_mtime, *(max(file.st_atime, file.st_mtime) for file in files)]
    return max(dates) < time.time() - UNUSED_DAYS * 86400


def remove(path: Path) -> None:
    """Removes a file, a folder or a link, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def holders() -> dict[Path, int]:
    """{lock file: process} of the builds that are under way in the build root."""
    return {path: holder for path in _found(build_root(), "*.lock") if (holder := _holder(path))}


def _found(root: Path, pattern: str) -> list[Path]:
    """What a build root and its folders hold."""
    # glob's own function, since folders may go while it looks, which Path.glob does not bear
    return [Path(path) for depth in (pattern, f"*/{pattern}") for path in glob.glob(f"{glob.escape(str(root))}/{depth}")]


def _holder(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # gone with the file that is closed
        except BlockingIOError:
            return int(lock.read())
    return None
