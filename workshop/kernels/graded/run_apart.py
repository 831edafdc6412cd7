"""Starts the kernel in which root grades an answer: as a user who does not exist, in a folder that is then removed.

An answer is any code that a learner likes. Run as root it could read all others' answers and set grades; run as the learner
whom it names, it could read that one's files, since names can be forged. So it gets a user number of its own that owns nothing,
and what it leaves running is killed. Called with -I: nothing that was handed in may be imported here.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORKSPACE = Path(__file__).resolve().parents[2] / "workspace.py"
UIDS = range(61184, 65520)  # those that systemd, too, gives to services for as long as they run


def main(connection: Path, extra: list[str]) -> int:
    """Runs ipykernel on a copy of the connection file, waits for its end, and leaves nothing behind."""
    uid = _free_uid()
    folder = Path(tempfile.mkdtemp(prefix="graded-"))
    try:
        copied = shutil.copy(connection, folder)  # root's own folder cannot be entered any more
        for path in (folder, copied):
            os.chown(path, uid, uid)
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), "LANG": "C.UTF-8",
                       "LOGNAME": f"graded-{uid}", "MEM_LIMIT": str(6 * 2**30),
                       # A GPU that others use as well would say "too slow" of one and not of another, so nothing is timed.
                       "LABKIT_BACKEND": "host"}
        kernel = subprocess.Popen(
            [sys.executable, WORKSPACE, sys.executable, "-m", "ipykernel_launcher", "-f", copied, *extra],
            cwd=folder, env=environment, user=uid, group=uid, extra_groups=[])
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # is for the kernel, which gets it too
        return kernel.wait()
    finally:
        _end_all_of(uid)
        shutil.rmtree(folder, ignore_errors=True)


def _free_uid() -> int:
    """One that no process has: what another answer has left must not reach this one."""
    while _processes_of(uid := random.choice(UIDS)):
        pass
    return uid


def _processes_of(uid: int) -> list[int]:
    found = []
    for process in filter(lambda path: path.name.isdigit(), Path("/proc").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            if process.stat().st_uid == uid:
                found.append(int(process.name))
    return found


def _end_all_of(uid: int) -> None:
    """Kills what still runs, and again what that has started meanwhile."""
    for _ in range(100):
        if not (left := _processes_of(uid)):
            return
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
