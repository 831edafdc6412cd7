"""Nsight Compute's reports, read without its window: by NVIDIA's own Python module, on any machine, with no GPU.

The module is `ncu_report`: PyPI's package ncu-report, and the folder extras/python of Nsight Compute. It was chosen over
nsight-python, which is built on it: that one also runs the profiler, by starting the whole script anew under ncu, which a
notebook's cell is not, and needs cuda-core; here `labkit.profiling` runs ncu on one short program of labkit's, and what is
left to do is to read a report, whoever made it. A module reads the reports of an older Nsight Compute.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import importlib
import math
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Iterator

from labkit import machine
from labkit.gpu_counts import Case, Rival, case_of

PACKED = ".ncu-rep.gz"  # as reports are kept in results/: about a fifth of the size
_UNITS = re.compile(r"([num]?)s(?:econd)?|([KMGT]?)(?:byte|B)")  # of a time, and of bytes; a rate is neither
_SCALE = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class NotRead(RuntimeError):
    """There is no module that reads reports, or the file is no report; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch of a report. kernel: the function's name. case: what labkit launched, None where labkit did not.

    values: {metric: number}, times in seconds and amounts in bytes; a metric that this GPU has not is left out.
    """

    kernel: str
    case: Case | Rival | None
    values: dict[str, float]

    def get(self, metric: str, per: str | None = None, digits: int = 1, scale: float = 1.0) -> float | None:
        """The value times `scale`, over that of `per` where it is named; None where one is not there, or `per` is 0."""
        value, by = self.values.get(metric), self.values.get(per, 0) if per else 1
        return None if value is None or not by else round(value / by * scale, digits)


def read(path: Path) -> list[Launch]:
    """The launches of a report, in order. path: ends in .ncu-rep, or in .ncu-rep.gz for one that is packed.

    Raises FileNotFoundError for a file that is not there, and NotRead where no module reads it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no report {path}")
    module = _module()
    with _unpacked(path) as file:
        context = module.load_report(str(file))
        ranges = [context.range_by_idx(k) for k in range(context.num_ranges())] if context is not None else []
        found = [_launch(of.action_by_idx(k)) for of in ranges for k in range(of.num_actions())]
    if not found:
        raise NotRead(f"{path.name} holds no launch that this ncu_report can read: it is no report, or one of a newer Nsight "
                      "Compute than the module; update it: pip install -U ncu-report")
    return found


def pack(report: Path, packed: Path) -> int:
    """Writes a report to `packed`, which ends in PACKED, the same bytes for the same report; returns how many."""
    packed.parent.mkdir(parents=True, exist_ok=True)
    content = gzip.compress(report.read_bytes(), mtime=0)
    packed.write_bytes(content)
    return len(content)


@contextlib.contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    if not path.name.endswith(PACKED):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / path.name.removesuffix(".gz")
        plain.write_bytes(gzip.decompress(path.read_bytes()))
        yield plain


def _module() -> ModuleType:
    """NVIDIA's ncu_report: as installed, else that of the Nsight Compute which is here."""
    for place in (None, *_of_nsight_compute()):
        before = list(sys.path)
        sys.path[:0] = [str(place)] if place else []
        try:
            return importlib.import_module("ncu_report")
        except ImportError:
            continue
        finally:
            sys.path[:] = before
    raise NotRead("NVIDIA's module ncu_report, which reads reports, is not installed: pip install ncu-report")


def _of_nsight_compute() -> list[Path]:
    """Folders with Nsight Compute's own copy of the module; ncu itself may be a script that starts the one beside them."""
    ncu = machine.find_ncu()
    if ncu is None:
        return []
    beside = ncu.resolve().parent
    homes = [beside, beside.parent, *Path("/opt/nvidia/nsight-compute").glob("*"),
             *Path("/usr/local").glob("cuda*/nsight-compute*")]
    return [home / "extras" / "python" for home in homes if (home / "extras" / "python").is_dir()]


def _launch(action) -> Launch:
    values = {}
    for name in action.metric_names():
        metric = action.metric_by_name(name)
        value = metric.value()
        if isinstance(value, (int, float)) and math.isfinite(value):
            values[name] = value * _scale(metric.unit())
    return Launch(action.name(), _case(action.nvtx_state()), values)


def _scale(unit: str | None) -> float:
    match = _UNITS.fullmatch(unit or "")
    return _SCALE[match[1] or match[2] or ""] if match else 1.0


def _case(state) -> Case | Rival | None:
    """What one of the NVTX ranges that the launch was in names."""
    for domain in state.domains() if state is not None else ():
        for label in state.domain_by_id(domain).push_pop_ranges():
            with contextlib.suppress(ValueError):
                return case_of(label)
    return None
