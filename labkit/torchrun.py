"""Runs a training program in one process, or by torchrun in several, reads its log, and ends all of it when that is asked."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator, Sequence

import psutil

from labkit.environment import importable

LIMIT = 600  # seconds for a run
POLL = 0.005  # seconds between two looks at a log


class RunFailed(RuntimeError):
    """A program ended with an error, or did not end; the text has the first process's last words."""


class Run:
    """A program that was started, with its log (lines of JSON) in `log`."""

    def __init__(self, process: subprocess.Popen, program: Path, log: Path, errors: Path):
        self.process, self.program, self.log, self.errors = process, program, log, errors

    def events(self) -> list[dict]:
        """What the log says so far; a line that is being written is left out."""
        text = self.log.read_text(encoding="utf-8") if self.log.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def workers(self) -> list[psutil.Process]:
        """The processes that run the program itself, torchrun not among them."""
        found = []
        for process in [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                words = process.cmdline()
                if str(self.program) in words and "torch.distributed.run" not in words:
                    found.append(process)
        return found

    def wait_until(self, holds, what: str) -> None:
        """Until holds(events). RunFailed where the run ends before, or after LIMIT seconds; `what` says what was waited for."""
        end = time.monotonic() + LIMIT
        while not holds(self.events()):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RunFailed(f"{self.program.name} was to reach {what}, and it "
                                f"{'ended' if self.process.poll() is not None else f'did not in {LIMIT} s'}. {self._words()}")
            time.sleep(POLL)

    def finish(self) -> list[dict]:
        """Waits for the end; returns the events of the log. RunFailed where it ends with an error, or after LIMIT seconds."""
        try:
            status = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"{self.program.name} did not end in {LIMIT} s. {self._words()}") from None
        if status:
            raise RunFailed(f"{self.program.name} ended with {status}. {self._words()}")
        return self.events()

    def kill(self) -> None:
        """Ends every process of the run by SIGKILL, at once and without a word to any."""
        with contextlib.suppress(psutil.NoSuchProcess):
            head = psutil.Process(self.process.pid)
            for process in [head, *head.children(recursive=True)]:  # torchrun first, or it would start others
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()

    def _words(self) -> str:
        return f"It said:\n{first_error(self.errors.read_text(encoding='utf-8', errors='replace'))}"


@contextlib.contextmanager
def started(program: Path, processes: int, arguments: Sequence[str], folder: Path, restarts: int = 0) -> Iterator[Run]:
    """Starts the program, alone for one process and by torchrun for more; what still runs of it afterwards is killed.

    arguments: its command line. folder: for what it prints; its log is folder/log.jsonl. restarts: how often torchrun
    starts all processes again where one died.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Without a name service a host may not find its own name: so the address is given.
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={processes}",
                f"--max-restarts={restarts}"] if processes > 1 else []
    variables = {**importable(os.environ), "OMP_NUM_THREADS": "1",
                 "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # or a restart reads addresses of the processes that died
    variables.pop("LABKIT_LOG", None)  # what they build is no news of the lab
    with (folder / "errors.txt").open("w") as errors, (folder / "said.txt").open("w") as said:
        process = subprocess.Popen([sys.executable, *launcher, str(program), *arguments], stdout=said, stderr=errors,
                                   env=variables)
        run = Run(process, program, folder / "log.jsonl", folder / "errors.txt")
        try:
            yield run
        finally:
            run.kill()


def losses(events: list[dict]) -> dict[int, list[float]]:
    """{step: the loss, as often as it was computed}."""
    found: dict[int, list[float]] = {}
    for event in events:
        if "loss" in event:
            found.setdefault(event["step"], []).append(event["loss"])
    return found


def first_error(text: str) -> str:
    """Of what processes wrote, the end of the first traceback and its error; the end of all where there is no traceback.

    Later tracebacks are of processes that waited for that one. torchrun begins the lines of each with "[rank0]: ", and those of
    several may be mixed. Its own, which ends in ChildFailedError, says nothing of why a process ended.
    """
    text = text.partition("\nTraceback (most recent call last):\n  File \"<frozen runpy>\"")[0]
    first = re.search(r"^(\[rank\d+\]: |)Traceback \(most recent call last\)", text, re.MULTILINE)
    if first is None:
        return text[-2000:]
    lines = [line.removeprefix(first[1]) for line in text[first.start():].splitlines() if line.startswith(first[1])]
    end = next((k for k, line in enumerate(lines[1:], 1) if line and not line[0].isspace()), len(lines) - 1)
    return "\n".join([*lines[max(1, end - 6):end], *lines[end:end + 5]])
