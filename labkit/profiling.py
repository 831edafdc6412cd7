"""Python programs under Nsight Compute's command line: what the hardware counted for each of their launches."""

from __future__ import annotations

import csv
import os
import subprocess
import sys

from labkit import REPOSITORY, machine

TIME_LIMIT = 180  # seconds; Nsight Compute hangs on some rented machines


def profile(metrics: dict[str, str], program: list[str], launches: int) -> list[dict]:
    """Runs Python with the arguments `program` under Nsight Compute: of each launch, in order, {key: value}.

    metrics: {key: Nsight Compute's name of the metric}. launches: how many the program makes between cudaProfilerStart
    and cudaProfilerStop. Raises RuntimeError where ncu is missing, refuses or counts another number, OSError and
    subprocess.TimeoutExpired.
    """
    ncu = machine.find_ncu()
    if ncu is None:
        raise RuntimeError("ncu is not installed (it comes with the CUDA toolkit)")
    # Its own clock control would change the GPU's settings while others may be using it.
    command = [ncu, "--clock-control", "none", "--profile-from-start", "off", "--csv", "--print-units", "base", "--metrics",
               ",".join(metrics.values()), sys.executable, *program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, cwd=REPOSITORY,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])})
    found = read_csv(done.stdout, metrics)
    if done.returncode or len(found) != launches:
        said = [line for line in (done.stdout + done.stderr).splitlines() if "ERR" in line or "rror" in line]
        raise RuntimeError(said[0].strip("= ") if said else f"it ended with {done.returncode} and {len(found)} launches")
    return found


def read_csv(text: str, metrics: dict[str, str]) -> list[dict]:
    """The counters of each launch, in order, from what ncu prints: one line a launch and metric, among other lines."""
    keys = {metric: key for key, metric in metrics.items()}
    launches: dict[str, dict] = {}
    for row in csv.DictReader(line for line in text.splitlines() if line.startswith('"')):
        launches.setdefault(row["ID"], {})[keys[row["Metric Name"]]] = float(row["Metric Value"].replace(",", ""))
    return list(launches.values())
