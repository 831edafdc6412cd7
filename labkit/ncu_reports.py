"""Nsight Compute's reports, read without its window, on any machine, with no GPU: by NVIDIA's own Python module.

The module is `ncu_report`: PyPI's package ncu-report, and the folder extras/python of Nsight Compute. It was chosen over
nsight-python, which is built on it: that one also runs the profiler, by starting the whole script anew under ncu, which a
notebook's cell is not, and needs cuda-core; here `labkit.profiling` runs ncu on one short program of labkit's, and what is
left to do is to read a report, whoever made it. A module reads the reports of an older Nsight Compute.
"""

from __future__ import annotations

import contextlib
import dataclasses
import lzma
import subprocess
import tempfile
from pathlib import Path
from typing import Iterator

from labkit.environment import in_a_new_process
from labkit.gpu_counts import Case, Rival, case_of

PACKED = ".ncu-rep.xz"  # as reports are kept in results/: a tenth of the size or less
LIMIT = 120  # seconds for reading a report


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
    """The launches of a report, in order. path: ends in .ncu-rep, or in .ncu-rep.xz for one that is packed.

    Raises FileNotFoundError for a file that is not there, and NotRead where no module reads it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no report {path}")
    with _unpacked(path) as file:
        try:
            found = in_a_new_process("labkit.ncu_reading", str(file), timeout=LIMIT)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            raise NotRead(f"NVIDIA's module ncu_report fails on {path.name}: {str(error) or 'it crashes'}") from error
    if isinstance(found, str):
        raise NotRead(found)
    if not found:
        raise NotRead(f"{path.name} holds no launch that this ncu_report can read: it is no report, or one of a newer Nsight "
                      "Compute than the module; update it: pip install -U ncu-report")
    return [Launch(launch["kernel"], _case(launch["ranges"]), launch["values"]) for launch in found]


def pack(report: Path, packed: Path) -> int:
    """Writes a report to `packed`, which ends in PACKED, the same bytes for the same report; returns how many."""
    packed.parent.mkdir(parents=True, exist_ok=True)
    content = lzma.compress(report.read_bytes())
    packed.write_bytes(content)
    return len(content)


@contextlib.contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    if not path.name.endswith(PACKED):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / path.name.removesuffix(".xz")
        plain.write_bytes(lzma.decompress(path.read_bytes()))
        yield plain


def _case(ranges: list[str]) -> Case | Rival | None:
    """What one of the NVTX ranges that the launch was in names."""
    for label in ranges:
        with contextlib.suppress(ValueError):
            return case_of(label)
    return None
