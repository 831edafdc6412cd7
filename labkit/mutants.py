"""`mutant`: an operator with one fault put into its kernel; `plant`: several of them, and what finds each."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from pathlib import Path
from typing import Sequence

import torch

from labkit import listing, results, source_files
from labkit.arguments import named
from labkit.build import digest, load, sources_under
from labkit.build_folder import build_root, made_once
from labkit.launching import prepare
from labkit.operator import Operator, kernels, kernels_of, source_path
from labkit.ordering import differences
from labkit.report import keep
from labkit.tracing import trace


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault to plant: `new` instead of `old` in one version of an operator, and the input shape that shows it.

    many: a shape that fills a GPU, for those who count its results there. race: whether it makes a race in shared memory, which
    racecheck has to see too.
    """

    operator: str
    version: int
    old: str
    new: str
    size: tuple[int, ...]
    many: tuple[int, ...] | None = None
    race: bool = False


def mutant(name: str, version: int, old: str, new: str, backend: str = "host", cuda_flags: Sequence[str] = (),
           file: str | None = None) -> Operator:
    """Builds a copy of an operator in which one version has `new` where `old` stood, and loads that version.

    name: a folder of kernels/. version: whose text is changed. old: a text that stands there exactly once. backend: as
    for `load`; "host" unless given, since a faulty kernel can leave a GPU unusable for the rest of the process. cuda_flags: as
    for `load`. file: where `old` stands if not in the version's own text: a path in kernels/, of the operator or of include/.
    The operator can be given to `check`, `trace` and `schedules`. The kernel itself is left as it is.
    Raises FileNotFoundError and ValueError as `show` does, ValueError where `old` does not stand there once or `new` changes
    nothing, and TypeError where either is no text. A kernel that goes far outside of its arrays ends this process when it is
    called, and one that never ends holds it up for good; `check`, `trace`, `schedules` and `kills` survive both.
    """
    source, part = source_path(name), listing.source(name, version)
    path = kernels() / file if file else source
    if not path.is_file():
        raise FileNotFoundError(f"mutant: there is no {path}; file is a path in kernels/, such as {name}/op.py")
    whole = source_files.text(path)
    text, where = (whole, file) if file else (part, f"version {version} of {source.name}")
    if not isinstance(old, str) or not isinstance(new, str):
        raise TypeError(f"mutant: old is {old!r} and new is {new!r}; both have to be texts")
    if text.count(old) != 1:
        raise ValueError(f"mutant: {old!r} stands {text.count(old)} times in {where}; it has to be "
                         "once, so that it is clear what is changed. Give more of the text around it")
    if old == new:
        raise ValueError(f"mutant: new is old, {old!r}; it has to change something")
    changed = whole.replace(text, text.replace(old, new), 1)
    copied = kernels() / name, kernels() / "include"

    def write(work: Path) -> None:
        for place in copied:
            source_files.copy(place, work / place.name)
        (work / path.relative_to(kernels())).write_text(changed, encoding="utf-8")

    # A folder that is there is the same: the name is made of all that is in it.
    folder = made_once(build_root() / "mutants" / digest(sources_under(*copied), str(kernels()), file, changed), write)
    with kernels_of(folder):
        return load(name, version, backend=backend, launch=False, cuda_flags=cuda_flags)


def plant(name: str, faults: dict[str, Fault], title: str) -> list[dict]:
    """Plants each fault in its kernel and shows what `trace` and `schedules` make of it; keeps the table.

    name: what the table is called in results/; <name>_words has the first finding of each in words. faults: {what is
    wrong: Fault}. title: the table's head. All run in float32.

    Returns the rows: the fault, what `trace` finds first and at which line, how many findings more, and under
    how many of the other orders of threads the result differs ("fails" where a launch does not end well, "not run" where
    the trace had to end it).
    """
    named("plant", "faults", faults, "Fault", lambda fault: isinstance(fault, Fault))
    rows, words = [], []
    for what, fault in faults.items():
        with contextlib.redirect_stdout(io.StringIO()):  # what it builds
            broken = mutant(fault.operator, fault.version, fault.old, fault.new)
            traced = trace(broken, fault.version, size=fault.size, dtype=torch.float32, show=False)
            differ = "not run" if traced.ended_early else _orders(broken, fault)
        found = traced.findings
        first = found[0] if found else None
        rows.append({"fault": what, "trace finds": first.kind if first else "nothing", "at": first.line if first else None,
                     "further findings": max(0, len(found) - 1), "orders that differ": differ})
        words.append({"fault": what, "in words": str(first) if first else "nothing"})
    keep({name: results.table_of(title, rows, exact=True),
          f"{name}_words": results.table_of(f"{title}, in words", words, exact=True)}, results.EXACT)
    results.note("exact", title, f"{sum(row['at'] is not None for row in rows)} of {len(rows)} faults found")
    return rows


def _orders(broken: Operator, fault: Fault) -> str:
    orders = 7  # reverse, and six shuffles
    try:
        launch = prepare(broken, "host", fault.version, None, fault.size, torch.float32, None)
        return f"{len({difference.order for difference in differences(launch, orders - 1)})} of {orders}"
    except RuntimeError:
        return "fails"
