"""What stands in a report of Nsight Compute, told as JSON by a process of its own.

    python -m labkit.ncu_reading REPORT    a list of launches; a text where there is no module that reads reports

NVIDIA's module ncu_report has libraries within that do not get on with torch's: its release 2025.3.1 ends a Python in which
torch was imported before. So nothing here imports torch, and whatever befalls the module, the reader's session goes on.
"""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from pathlib import Path
from types import ModuleType

from labkit import machine

_UNITS = re.compile(r"([num]?)s(?:econd)?|([KMGT]?)(?:byte|B)")  # of a time, and of bytes; a rate is neither
_SCALE = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def launches(module: ModuleType, path: str) -> list[dict]:
    """Of each launch of a report, in order: its "kernel"; the names of the NVTX "ranges" that it was in; and "values",
    {metric: number}, times in seconds and amounts in bytes. module: ncu_report. [] for what is no report.
    """
    context = module.load_report(path)
    ranges = [context.range_by_idx(k) for k in range(context.num_ranges())] if context is not None else []
    return [_told(of.action_by_idx(k)) for of in ranges for k in range(of.num_actions())]


def find_module() -> ModuleType:
    """NVIDIA's ncu_report: as installed, else that of the Nsight Compute which is here. ImportError where there is none."""
    for place in (None, *_of_nsight_compute()):
        before = list(sys.path)
        sys.path[:0] = [str(place)] if place else []
        try:
            return importlib.import_module("ncu_report")
        except ImportError:
            continue
        finally:
            sys.path[:] = before
    raise ImportError("NVIDIA's module ncu_report, which reads reports, is not installed: pip install ncu-report")


def _of_nsight_compute() -> list[Path]:
    """Folders with Nsight Compute's own copy of the module; ncu itself may be a script that starts the one beside them."""
    ncu = machine.find_ncu()
    if ncu is None:
        return []
    beside = ncu.resolve().parent
    homes = [beside, beside.parent, *Path("/opt/nvidia/nsight-compute").glob("*"),
             *Path("/usr/local").glob("cuda*/nsight-compute*")]
    return [home / "extras" / "python" for home in homes if (home / "extras" / "python").is_dir()]


def _told(action) -> dict:
    values = {}
    for name in action.metric_names():
        metric = action.metric_by_name(name)
        value = metric.value()
        if isinstance(value, (int, float)) and math.isfinite(value):
            values[name] = value * _scale(name, metric.unit())
    state = action.nvtx_state()
    ranges = [label for domain in state.domains() for label in state.domain_by_id(domain).push_pop_ranges()] if state else []
    return {"kernel": action.name(), "ranges": ranges, "values": values}


def _scale(name: str, unit: str | None) -> float:
    if not unit and name.startswith("gpu__time_duration"):  # of a GPU that is newer than the module, which then knows no units
        unit = "ns"
    match = _UNITS.fullmatch(unit or "")
    return _SCALE[match[1] or match[2] or ""] if match else 1.0


if __name__ == "__main__":
    try:
        _json = json.dumps(launches(find_module(), sys.argv[1]))
    except ImportError as error:
        _json = json.dumps(str(error))
    print(_json)
