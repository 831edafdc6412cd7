"""Python programs under Nsight Compute's command line: what the hardware counted for each of their launches."""

from __future__ import annotations

import csv
import os
import subprocess
import sys

from labkit import REPOSITORY, machine

TIME_LIMIT = 180  # seconds; Nsight Compute hangs on some rented machines


class NotCounted(RuntimeError):
    """Nsight Compute is missing, refuses, hangs, or counted something else; the message begins with its name."""

    def __init__(self, why: object):
        super().__init__(f"Nsight Compute did not count: {why}")


def profile(metrics: dict[str, str], program: list[str], launches: int) -> list[dict]:
    """Runs Python with the arguments `program` under Nsight Compute: of each launch, in order, {key: value}.

    metrics: {key: Nsight Compute's name of the metric}. launches: how many the program makes between cudaProfilerStart
    and cudaProfilerStop. Raises NotCounted.
    """
    ncu = machine.find_ncu()
    if ncu is None:
        raise NotCounted("ncu is not installed (it comes with the CUDA toolkit)")
    # Its own clock control would change the GPU's settings while others may be using it.
    command = [ncu, "--clock-control", "none", "--profile-from-start", "off", "--csv", "--print-units", "base", "--metrics",
               ",".join(metrics.values()), sys.executable, *program]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, cwd=REPOSITORY,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])})
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotCounted(error) from error
    found = read_csv(done.stdout, metrics)
    if done.returncode or len(found) != launches:
        said = [line for line in (done.stdout + done.stderr).splitlines() if "ERR" in line or "rror" in line]
        raise NotCounted(said[0].strip("= ") if said else f"it ended with {done.returncode} and {len(found)} launches")
    return found


def read_csv(text: str, metrics: dict[str, str]) -> list[dict]:
    """The counters of each launch, in order, from what ncu prints: one line a launch and metric, among other lines."""
    keys = {metric: key for key, metric in metrics.items()}
    launches: dict[str, dict] = {}
    for row in csv.DictReader(line for line in text.splitlines() if line.startswith('"')):
        launches.setdefault(row["ID"], {})[keys[row["Metric Name"]]] = float(row["Metric Value"].replace(",", ""))
    return list(launches.values())
