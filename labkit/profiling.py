"""Python programs under Nsight Compute's command line: what the hardware counted for each of their launches."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Iterable

from labkit import REPOSITORY, machine
from labkit.environment import run_whole

TIME_LIMIT = 180  # seconds; Nsight Compute hangs on some rented machines


# NVIDIA's page on who may read the counters. On a rented GPU its host decides; root inside a container does not help.
PERMISSION = "ERR_NVGPUCTRPERM"
WHO_MAY = ("this GPU's counters are for administrators alone: the host's owner can open them "
           "(https://developer.nvidia.com/ERR_NVGPUCTRPERM), and a container needs --cap-add=SYS_ADMIN; where neither is to be "
           "had, as on Colab and most rented GPUs, read a recorded report")


class NotCounted(RuntimeError):
    """Nsight Compute is missing, refuses, hangs, or counted something else; the message begins with its name."""

    def __init__(self, why: object):
        super().__init__(f"Nsight Compute did not count: {why}")


def profile(metrics: dict[str, str], program: list[str], launches: int) -> list[dict]:
    """Runs Python with the arguments `program` under Nsight Compute: of each launch, in order, {key: value}.

    metrics: {key: Nsight Compute's name of the metric}. launches: how many the program makes between cudaProfilerStart
    and cudaProfilerStop. Raises NotCounted.
    """
    done = _under_ncu(["--csv", "--print-units", "base", "--metrics", ",".join(metrics.values())], program)
    found = read_csv(done.stdout, metrics)
    if done.returncode or len(found) != launches:
        raise NotCounted(_refusal(done) or f"it ended with {done.returncode} and {len(found)} launches")
    return found


def export(path: Path, sections: Iterable[str], metrics: Iterable[str], program: list[str]) -> None:
    """Runs Python with the arguments `program` under Nsight Compute, and writes what it counted as a report.

    path: the report, which ends in .ncu-rep; an older one is replaced. sections: Nsight Compute's identifiers, such as
    "SpeedOfLight". metrics: counted beside what the sections hold; a GPU that lacks one goes without. The report names the
    NVTX ranges that each launch was in. Raises NotCounted, also where no report came of it.
    """
    path.unlink(missing_ok=True)
    chosen = [word for section in sections for word in ("--section", section)]
    done = _under_ncu(["--nvtx", *chosen, "--metrics", ",".join(metrics), "--export", str(path)], program)
    if done.returncode or not path.exists():
        raise NotCounted(_refusal(done) or f"it ended with {done.returncode} and {'a' if path.exists() else 'no'} report")


def _under_ncu(options: list[str], program: list[str]) -> subprocess.CompletedProcess:
    ncu = machine.find_ncu()
    if ncu is None:
        raise NotCounted("ncu is not installed (it comes with the CUDA toolkit)")
    # Its own clock control would change the GPU's settings while others may be using it.
    command = [ncu, "--clock-control", "none", "--profile-from-start", "off", *options, sys.executable, *program]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])}
    try:
        return run_whole(command, timeout=TIME_LIMIT, cwd=REPOSITORY, env=variables)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotCounted(error) from error


def _refusal(done: subprocess.CompletedProcess) -> str | None:
    """The first line that speaks of an error; of the one that everybody meets, what to do about it."""
    said = [line.strip("= ") for line in (done.stdout + done.stderr).splitlines() if "ERR" in line or "rror" in line]
    if any(PERMISSION in line for line in said):
        return f"{PERMISSION}, {WHO_MAY}"
    return said[0] if said else None


def read_csv(text: str, metrics: dict[str, str]) -> list[dict]:
    """The counters of each launch, in order, from what ncu prints: one line a launch and metric, among other lines.

    NotCounted for a metric that has no number, as one that this GPU does not have, and for a table of another kind.
    """
    keys = {metric: key for key, metric in metrics.items()}
    launches: dict[str, dict] = {}
    for row in csv.DictReader(line for line in text.splitlines() if line.startswith('"')):
        try:
            launches.setdefault(row["ID"], {})[keys[row["Metric Name"]]] = float(row["Metric Value"].replace(",", ""))
        except ValueError:
            raise NotCounted(f"of {row['Metric Name']} it says {row['Metric Value']!r}") from None
        except (KeyError, AttributeError):  # AttributeError: a row that ends early
            raise NotCounted(f"its table has the row {list(row.values())}, which is of another kind than asked for") from None
    return list(launches.values())
