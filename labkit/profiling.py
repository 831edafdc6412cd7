"""`counters`: what the hardware counted while each version of a kernel ran, through Nsight Compute's command line.

Nsight Compute runs this module as a program of its own (`python -m labkit.profiling NAME MODE ELEMENTS DTYPE`), which
launches each version once between cudaProfilerStart and cudaProfilerStop; only those launches are counted.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys

from labkit import REPOSITORY, machine, results
from labkit.operator import Operator
from labkit.report import show_figure, show_table

_METRICS = {
    "instructions": "smsp__inst_executed.sum",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
}
TIME_LIMIT = 180  # seconds; Nsight Compute hangs on some rented machines


def counters(name: str, operator: Operator, mode: str, elements: int, dtype: str, title: str) -> list[dict]:
    """Counts what each version of an operator does on the GPU; shows and keeps the table.

    name: what the table is called in results/. mode: one of the operator's modes, such as "forward". elements: of each
    tensor. dtype: a torch dtype's name, such as "bfloat16". title: the table's head.

    Returns a row a version: instructions an element (executed by its thread, memory accesses included); the share of
    issue slots used and of warp slots filled; how busy the memory was; and the 32-byte sectors that a warp's load
    touches. Without a GPU, or where Nsight Compute is missing, refused or silent, it says so, shows the recorded table
    and returns [].
    """
    why = "there is no GPU here"
    if operator.backend == "cuda":
        try:
            rows = _count(operator, mode, elements, dtype)
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            why = f"Nsight Compute did not count: {error}"
        else:
            table = results.table_of(title, rows)
            results.add(name, table)
            results.note("measured", title, f"{len(rows)} versions counted by Nsight Compute")
            show_table(table)
            return rows
    show_recorded(name, title, why)
    return []


def show_recorded(name: str, title: str, why: str) -> dict | None:
    """Shows the recorded table or figure `name` of this lab in place of a measurement; None where there is none.

    title: what it would have been called. why: it was not measured here, such as "there is no GPU here".
    """
    found = results.recorded(results.session().lab, name)
    if found is None:
        print(f"{title}: {why}, and nothing is recorded.")
        return None
    show = show_table if found.table["kind"] == "table" else show_figure
    show(found.table, f"{found.caption()}; not measured on this machine: {why}")
    return found.table


def _count(operator: Operator, mode: str, elements: int, dtype: str) -> list[dict]:
    program = ["-m", "labkit.profiling", operator.name, mode, str(elements), dtype]
    launches = profile(_METRICS, program, len(operator.versions))
    return [{"version": f"v{version}",
             "instructions an element": round(32 * counted["instructions"] / elements, 2),
             "issue slots used, %": counted["issue"], "warp slots filled, %": counted["warps"],
             "memory busy, %": counted["memory"], "sectors a load": round(counted["sectors"] / counted["requests"], 2)}
            for version, counted in zip(operator.versions, launches)]


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


def _launch_each_version(name: str, mode: str, elements: int, dtype: str) -> None:
    import torch

    from labkit.build import load

    operator = load(name)
    inputs, outputs, _ = operator.reference.MODES[mode]
    tensors = [torch.randn(elements, device=operator.device).to(getattr(torch, dtype)) for _ in inputs + outputs]
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for version in operator.versions:
        getattr(operator.ops, f"{mode}_out")(*tensors, version)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    _launch_each_version(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
