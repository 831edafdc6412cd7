"""Environment variables for the time of a block, and programs that end with all that they have started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any, Iterator, Mapping, Sequence

from labkit import REPOSITORY


def importable(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with labkit importable from any folder."""
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), environment.get("PYTHONPATH")]))}


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Within, the variables have these values; afterwards what they had, or none again."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)  # gone already where the block took it away
            else:
                os.environ[name] = value


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Within, an operator of PyTorch's has one thread: small ones shared out take longer, much so on busy cores."""
    import torch  # this module is also there before torch is installed

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def whole(command: Sequence[str | os.PathLike], **options: Any) -> Iterator[subprocess.Popen]:
    """The program, started by subprocess.Popen, with its words captured as text. What still runs when the block is left, by an
    error or Ctrl-C too, is killed, with all that it has started: profilers start the program that they watch.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", errors="replace", start_new_session=True,
                          **options) as running:
        try:
            yield running
        finally:
            kill_whole(running)


def kill_whole(running: subprocess.Popen) -> None:
    """Ends a program of `whole`, and all that it has started, at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)


def run_whole(command: Sequence[str | os.PathLike], timeout: float | None, **options: Any) -> subprocess.CompletedProcess:
    """Runs a program to its end, as subprocess.run does. After `timeout` seconds, or at Ctrl-C, nothing of it runs on."""
    with whole(command, stderr=subprocess.PIPE, **options) as running:
        stdout, stderr = running.communicate(timeout=timeout)
    return subprocess.CompletedProcess(command, running.returncode, stdout, stderr)


def in_a_new_process(module: str, *arguments: str, timeout: float | None = None, **variables: str) -> Any:
    """Runs a module of labkit in a process of its own and returns what the last line that it prints says, as JSON.

    arguments: its command line. timeout: seconds, after which subprocess.TimeoutExpired is raised. variables: of its
    environment, added to those here. RuntimeError, the process's last line first, where it fails.
    """
    done = run_whole([sys.executable, "-m", module, *arguments], timeout=timeout, env={**importable(os.environ), **variables})
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise RuntimeError(f"{words.splitlines()[-1] if words else f'it ended with {done.returncode}'}\n{words}")
    return json.loads(done.stdout.splitlines()[-1])
