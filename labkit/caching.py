"""`rebuilds`: after which changes an extension is compiled again, by torch's `load` and by labkit's.

The extension is C++ of a few lines: what decides is ninja, its record of headers, and torch's memory of the process, and
they are the same for a .cu file. It is built, changed, and loaded again; whether it was compiled is seen in its value.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Callable

import torch

from labkit import build, results, toolchain
from labkit.environment import in_a_new_process
from labkit.operator import kernels_of
from labkit.report import keep

_SOURCE = """\
#include "beside.h"
#include <system.h>
#ifndef FLAG
#define FLAG 1
#endif
// a comment
extern "C" long value() { return 1000 * FLAG + 100 * SYSTEM + 10 * BESIDE + 1; }
"""


@dataclasses.dataclass(frozen=True)
class _Change:
    """Something that changes between two loads: what it does to a folder, the flags and the torch of the second load, and
    the value that is due then.
    """

    name: str
    make: Callable[[Path], None] = lambda folder: None
    flags: tuple[str, ...] = ()
    torch_version: str = torch.__version__
    due: int = 1111


def _replace(file: str, old: str, new: str) -> Callable[[Path], None]:
    def replace(folder: Path) -> None:
        path = folder / file
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")

    return replace


_CHANGES = [
    _Change("nothing"),
    _Change("the date of the source", lambda folder: os.utime(folder / "source.cpp", (2e9, 2e9))),
    _Change("a comment in the source", _replace("source.cpp", "a comment", "another")),
    _Change("a number in the source", _replace("source.cpp", "+ 1;", "+ 2;"), due=1112),
    _Change("a number in a header beside it", _replace("beside.h", "1", "2"), due=1121),
    _Change("the release of torch, with a number in a header", _replace("system/system.h", "1", "2"), due=1211,
            torch_version="another"),
    _Change("a flag", flags=("-DFLAG=2",), due=2111),
]


def rebuilds(name: str) -> list[dict]:
    """Finds out which changes make torch's `load` compile again, in the same process and in a new one, and labkit's.

    name: what the table is called in results/.

    A row a change. "stale" is an old value where the new one was due: the change has been missed. Another release of torch
    is played by a header in a folder given with -isystem, as torch's own is. labkit's column says whether the build would
    have a folder of its own, which it is named for; nothing is built for it. Raises RuntimeError where the C++ compiler
    fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        first = in_a_new_process("labkit.caching", "build, change, load again", folder)
        second = in_a_new_process("labkit.caching", "load again", folder)
    rows = [{"changed": change.name, "load(), same process": first[change.name], "load(), new process": second[change.name],
             "labkit.load, another folder": second[f"labkit: {change.name}"]} for change in _CHANGES]
    stale = sum(row[column] == "stale" for row in rows for column in list(row)[1:])
    results.note("exact", "what makes it compile again", f"{len(rows)} changes, {stale} missed")
    keep({name: results.table_of("What makes it compile again", rows)})
    return rows


def _task(task: str, folder: Path) -> dict[str, str]:
    """What became of each change, by its name; see `rebuilds`."""
    outcomes = {}
    for number, change in enumerate(_CHANGES):
        here, later = folder / f"here{number}", folder / f"later{number}"
        if task == "load again":
            outcomes |= {change.name: _outcome(change, later), f"labkit: {change.name}": _labkit(change)}
            continue
        for place in (here, later):
            _write(place)
            _load(place, ())
            change.make(place)
        outcomes[change.name] = _outcome(change, here)
    return outcomes


def _write(place: Path) -> None:
    (place / "system").mkdir(parents=True)
    (place / "source.cpp").write_text(_SOURCE, encoding="utf-8")
    (place / "beside.h").write_text("#define BESIDE 1\n", encoding="utf-8")
    (place / "system" / "system.h").write_text("#define SYSTEM 1\n", encoding="utf-8")
    (place / "built").mkdir()


def _outcome(change: _Change, place: Path) -> str:
    objects = place / "built" / "source.o"
    before = objects.stat().st_mtime_ns
    value = _load(place, change.flags)
    if value != change.due:
        return "stale"
    return "compiled" if objects.stat().st_mtime_ns != before else "reused"


def _load(place: Path, flags: tuple[str, ...]) -> int:
    with toolchain.torchs_builder() as cpp_extension:
        cpp_extension.load(place.name, str(place / "source.cpp"), build_directory=str(place / "built"), with_cuda=False,
                           extra_cflags=["-isystem", str(place / "system"), *flags], is_python_module=False)
    # torch numbers the libraries of one process: the last is the one that it has just loaded.
    newest = max((place / "built").glob("*.so"), key=lambda path: path.stat().st_mtime_ns)
    return ctypes.CDLL(str(newest)).value()


def _labkit(change: _Change) -> bool:
    """Whether labkit's folder for a build is another after the change. Of another torch it is the version alone that counts,
    which this process then has a wrong idea of.
    """
    with tempfile.TemporaryDirectory() as folder, kernels_of(Path(folder)):
        place = Path(folder) / "source"
        _write(place)
        (Path(folder) / "include").mkdir()
        before = build.fingerprint("source", "host", [])
        if change.torch_version == torch.__version__:
            change.make(place)
        torch.__version__ = change.torch_version
        return build.fingerprint("source", "host", list(change.flags)) != before


if __name__ == "__main__":
    print(json.dumps(_task(sys.argv[1], Path(sys.argv[2]))))
