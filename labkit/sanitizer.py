"""compute-sanitizer's racecheck and synccheck on one launch of an operator: what they say, read from what they print."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from labkit import machine
from labkit.environment import importable, kill_whole, whole
from labkit.faulty_launches import Run, specification
from labkit.operator import Operator

TOOLS = ("racecheck", "synccheck")
LIMIT = 180  # seconds for a run, most of which is the start of Python
MOST_PRINTED = 10
TOLD = '[[{"launches"'  # how the line begins in which `labkit.faulty_launches` says what it saw


@dataclasses.dataclass(frozen=True)
class Report:
    """What a tool says: how many findings, the first in its words, the source lines of those that it prints, as "fold.cu:25".

    ended: None, or "hangs" or "fails: ..." where the launch or the tool did not come to its end.
    """

    findings: int
    first: str = ""
    lines: tuple[str, ...] = ()
    ended: str | None = None

    def __str__(self) -> str:
        if self.ended:
            return self.ended
        if not self.findings:
            return "nothing"
        numbers = sorted({int(line.rpartition(":")[2]) for line in self.lines})
        return f"at {', '.join(map(str, numbers))}" if numbers else f"{self.findings} findings"


def installed() -> Path | None:
    """Where compute-sanitizer is: in the toolkit, on PATH, or in PyPI's package. None where there is none."""
    return machine.find_cuda_tool("compute-sanitizer")


def verdict(tool: str, operator: Operator, size: tuple[int, ...]) -> Report:
    """Runs one launch, with an input of this shape, under a tool of TOOLS, in a process of its own.

    operator: built for CUDA, with one version. A run that says nothing for LIMIT seconds is ended. Raises FileNotFoundError
    where compute-sanitizer is not installed.
    """
    program = installed()
    if program is None:
        raise FileNotFoundError("compute-sanitizer is not installed (it comes with the CUDA toolkit)")
    command = [str(program), "--tool", tool, "--show-backtrace", "no", "--print-limit", str(MOST_PRINTED), sys.executable,
               "-m", "labkit.faulty_launches", specification([(operator, [Run(size, 1)])], sanitized=True)]
    # torch's allocator would hide the ends of arrays from the tools.
    variables = {**importable(os.environ), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    with whole(command, stderr=subprocess.STDOUT, env=variables) as running:
        try:
            text, _ = running.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            kill_whole(running)
            text, _ = running.communicate()
            if TOLD not in text:  # the program itself tells a launch that hangs, and may not get away from it
                return Report(0, ended=f"fails: no end after {LIMIT} s")
    return read(text)


def read(text: str) -> Report:
    """The verdict in what a tool and the program below it print."""
    ended = next((run["ended"] for line in text.splitlines() if line.startswith(TOLD)
                  for run in json.loads(line)[0] if run["ended"]), None)
    said = [line[9:] for line in text.splitlines() if line.startswith("=========")]
    summary = re.search(r"SUMMARY: (\d+) (?:hazard|error)", "\n".join(said))
    if not summary:
        return Report(0, ended=ended or f"fails: {(text.strip().splitlines() or ['it printed nothing'])[-1][:200]}")
    records = "\n".join(line for line in said if "COMPUTE-SANITIZER" not in line and "SUMMARY" not in line)
    first = next((" ".join(record.split()) for record in re.split(r"\n(?= \S)", records) if record.strip()), "")
    first = re.sub(r"\bat (?:(?! at ).)*?\+0x[0-9a-f]+ in (?:/.*?)?([\w.-]+:\d+)", r"at \1", first)
    first = re.sub(r"( and \w+ access at \S+ \[\d+ hazards\])\1+", r"\1", first)  # of other instructions of the same line
    lines = tuple(dict.fromkeys(re.findall(r"([\w-]+\.cuh?:\d+)", records)))
    return Report(int(summary[1]), first if summary[1] != "0" else "", lines if summary[1] != "0" else (), ended)
