"""Recorded measurements: what a session of a lab found, kept as one JSON file a GPU.

A lab calls `start` in its first cell and `record` in its last. In between, `labkit.bench` and the lab itself
hand in tables with `add`; `record` then appends them, as one run, to `results/<gpu>.json`. The book, the
README and a lab on a machine without a GPU read them back with `recorded`. Nothing else writes numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import functools
import json
import os
import tempfile
import textwrap
from pathlib import Path
from typing import Callable, Iterator

import fastjsonschema  # the package jsonschema takes 2 s to import, where what JupyterLab brings for it is there

from labkit import REPOSITORY, machine, poison, sources

SCHEMA = REPOSITORY / "results" / "schema.json"
BOOK_GPU = "nvidia-h200"  # whose figures the pages print where several GPUs have recorded the same lab
EXACT = "Counted, not timed: the same on every machine"  # what `trace` finds
WIDTH = 120  # columns of what is printed
NOTE_KINDS = ("check", "measured", "built", "exact", "recorded")


class ResultsError(ValueError):
    """A results file or table breaks results/schema.json, or a session is not in a state to be recorded."""


@dataclasses.dataclass
class Session:
    """What this Python process has found so far for one lab."""

    lab: str | None = None
    tables: dict[str, dict] = dataclasses.field(default_factory=dict)
    notes: list[dict] = dataclasses.field(default_factory=list)


_session = Session()


@dataclasses.dataclass(frozen=True)
class Recorded:
    """One recorded table, with the run and the GPU it belongs to (dicts as results/schema.json describes)."""

    gpu: dict
    run: dict
    table: dict

    def caption(self) -> str:
        """Where and when it was measured: "Recorded on NVIDIA H200, driver 580.159, CUDA 13.0, ..."; or EXACT."""
        if self.table.get("exact") or self.table.get("kind") in ("request", "owners"):
            return EXACT
        return f"Recorded on {conditions(self.gpu, self.run['versions'], self.run['date'])}"


def conditions(gpu: dict, versions: dict, date: str) -> str:
    """GPU, driver, CUDA, torch and day, in one phrase; what a machine does not know is left out."""
    known = [f"{label} {versions[key]}" for key, label in
             (("driver", "driver"), ("cuda", "CUDA"), ("torch", "torch")) if versions.get(key)]
    return ", ".join([gpu["name"], *known, date[:10]])


def today() -> str:
    """This day, as ISO 8601 writes it, in UTC."""
    return _now()[:10]


# -- the session --------------------------------------------------------------------------------------------

def start(lab: str) -> None:
    """Begin the session of `lab`, for example "04_fused_kernel"; the first cell of every lab calls it.

    Prints what the lab runs on: backend, GPU, versions, date, and a hash of the sources that it runs. Tables
    and notes of an earlier session in the same process are dropped, so that "run all" in a used kernel starts
    clean. Raises FileNotFoundError when labs/<lab>.ipynb is not there.
    """
    global _session
    code = sources.sources_hash(lab)
    _session = Session(lab=lab)
    poison.watch()
    gpu, versions = machine.gpu(), machine.versions()
    if machine.backend() == "cuda":
        where = (f"cuda: {gpu['name']}, compute capability {gpu['capability']}, {gpu['sms']} SMs, "
                 f"{gpu['memory_gib']:.0f} GiB, L2 {gpu['l2_mib']:.0f} MiB")
    else:
        where = "host: no GPU here; kernels run on the CPU, and GPU figures below are recorded ones"
    shown = ["python", "torch", "cuda", "driver", "nvcc", "triton"]
    print(f"lab       {lab}\n"
          f"backend   {where}\n"
          f"versions  {', '.join(f'{name} {versions[name]}' for name in shown if versions.get(name))}\n"
          f"{sources.LABEL}   {code}\n"
          f"date      {today()}")
    if machine.backend() == "cuda":
        from labkit import room  # it imports torch, which reading results does without

        if others := room.neighbours():
            print(f"shared    {others}")


def note(kind: str, name: str, outcome: str) -> None:
    """Keep one line of what the session did, such as ("check", "gelu", "412 cases passed").

    `kind` is one of NOTE_KINDS (ValueError otherwise); "recorded" stands for what was only shown. Where the
    environment variable LABKIT_LOG names a file, the note is also appended to it as a line of JSON; the runner of
    labs makes its closing table from that.
    """
    if kind not in NOTE_KINDS:
        raise ValueError(f"kind must be one of {', '.join(NOTE_KINDS)}, not {kind!r}")
    entry = {"lab": _session.lab, "kind": kind, "name": name, "outcome": outcome,
             "backend": machine.backend()}
    _session.notes.append(entry)
    log = os.environ.get("LABKIT_LOG")
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def table_of(title: str, rows: list[dict], exact: bool = False, bars: dict | None = None) -> dict:
    """Rows of the same columns, at least one, as a record of kind "table". exact: counted, and not measured. bars: which
    columns a figure draws, with its axis (see results/schema.json).
    """
    return {"kind": "table", "title": title, **({"exact": True} if exact else {}), "columns": list(rows[0]),
            **({"bars": bars} if bars else {}), "rows": rows}


def add(name: str, table: dict) -> None:
    """Keep a table of this session under `name`, to be recorded by `record`; a later table replaces an
    earlier one.

    `table` is a dict of one of the kinds in results/schema.json ("bench", "table", "curve", "heat",
    "timeline", "request", "owners", "listing"); numbers may be NumPy's or torch's. Raises ResultsError when it does not fit the
    schema, is at odds with itself (a row without one of the columns), or holds a NaN or an infinity.
    """
    try:
        plain = json.loads(json.dumps(table, allow_nan=False, default=lambda value: value.item()))
    except (ValueError, TypeError, AttributeError) as error:
        raise ResultsError(f"table {name!r} is not plain finite numbers and text: {error}") from error
    _validate(plain, f"table {name!r}", part="table")
    for problem in _at_odds(plain):
        raise ResultsError(f"table {name!r}: {problem}")
    _session.tables[name] = plain


def _at_odds(table: dict) -> Iterator[str]:
    """What in a table does not fit together: the rules that JSON Schema has no words for."""
    kind = table["kind"]
    if kind == "table":
        yield from (f"row {row} must have the columns {table['columns']}" for row in table["rows"]
                    if set(row) != set(table["columns"]))
        yield from (f"bars names the column {column!r}, whose cells must be numbers"
                    for column in table.get("bars", {}).get("columns", [])
                    if not all(type(row.get(column, "")) in (int, float, type(None)) for row in table["rows"]))
    if kind == "curve":
        for name in ("x", "y"):
            axis = table.get(name, {})
            if "tick_labels" in axis and len(axis["tick_labels"]) != len(axis["ticks"]):
                yield f"{name} has {len(axis['ticks'])} ticks and {len(axis['tick_labels'])} tick_labels; each needs one"
            drawn = [*axis.get("ticks", []), *(mark[name] for mark in [*table.get("points", []), *table.get("vertical", [])]
                                               if name in mark)]
            if axis.get("scale") == "log" and min(drawn, default=1) <= 0:
                yield f"{min(drawn)} has no place on the logarithmic {name} axis; ticks, points and lines must be above 0"
        yield from (f"the series {name!r} has {len(values)} values for {len(table['x']['values'])} of x; each needs one"
                    for name, values in table["series"].items() if len(values) != len(table["x"]["values"]))
        yield from _twice("points", [point["label"] for point in table.get("points", [])])
    if kind == "heat":
        xs, ys, cells = table["x"]["values"], table["y"]["values"], table["cells"]
        if len(cells) != len(ys):
            yield f"it has {len(cells)} rows of cells for {len(ys)} values of y; each needs one"
        yield from (f"row {k} of cells has {len(row)} cells for {len(xs)} values of x; each needs one (null where nothing was "
                    "measured)" for k, row in enumerate(cells) if len(row) != len(xs))
        if not any(cell is not None for row in cells for cell in row):
            yield "no cell holds a number"
        yield from (f"the mark {mark['label']!r} is at x {mark['x']}, y {mark['y']}, which are not among the values of x and y"
                    for mark in table.get("marks", []) if mark["x"] not in xs or mark["y"] not in ys)
        yield from _twice("marks and lines", [each["label"] for each in [*table.get("marks", []), *table.get("lines", [])]])
    if kind == "timeline":
        spans = [(lane, span) for lane in table["lanes"] for span in lane["spans"]]
        if not spans:
            yield "no lane holds a span"
        yield from (f"a span of the lane {lane['name']!r} ends at {span['end']}, before its start at {span['start']}"
                    for lane, span in spans if span["end"] < span["start"])
        yield from _twice("lanes", [f"{lane['group']}: {lane['name']}" if "group" in lane else lane["name"]
                                    for lane in table["lanes"]])


def _twice(what: str, names: list[str]) -> Iterator[str]:
    """That a name stands for two of them, so that the prose could not tell which it means."""
    yield from (f"two of its {what} are named {name!r}" for name in sorted(set(names)) if names.count(name) > 1)


def record() -> Path | None:
    """Append this session's tables as one run to results/<gpu>.json, and return that file's path.

    Earlier runs stay. The file is checked against results/schema.json and replaced in one step, so that a
    reader never sees half of it. On the host backend nothing is recorded (None is returned, and a line says
    so). Raises ResultsError when `start` was not called, no table was added, or the existing file is not
    valid.
    """
    if machine.backend() != "cuda":
        print("Not recorded: there is no GPU here, and only GPU measurements are recorded.")
        return None
    if _session.lab is None:
        raise ResultsError("record: no lab was started; call labkit.start(\"NN_topic\") in the first cell")
    if not _session.tables:
        raise ResultsError("record: this session measured nothing; run the lab's cells above first")
    gpu = machine.gpu()
    run = {"lab": _session.lab, "date": _now(), "sources": sources.sources_hash(_session.lab),
           "versions": machine.versions(), "clocks": machine.clocks(), "tables": _session.tables}
    path, _ = append(gpu, [run])
    print(textwrap.fill(f"Recorded {', '.join(_session.tables)} in {path.name}.", WIDTH))
    return path


def append(gpu: dict, runs: list[dict]) -> tuple[Path, list[dict]]:
    """Append runs to results/<gpu>.json, but for those that it holds already; the file's path, and the runs that were added.

    Facts of the GPU that the file lacks are added as well. Raises ResultsError when what there is, or would be, breaks the
    schema; the file then stays as it is.
    """
    path = folder() / f"{gpu['slug']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        document = _read(path) if path.exists() else {"schema": 1, "gpu": gpu, "runs": []}
        added = [run for run in runs if run not in document["runs"]]
        new = {**document, "gpu": gpu | document["gpu"], "runs": document["runs"] + added}
        _validate(new, str(path))
        if not path.exists() or new != document:
            replace(path, json.dumps(new, indent=1, allow_nan=False) + "\n")
    return path, added


# -- reading ------------------------------------------------------------------------------------------------

def folder() -> Path:
    """Where results are kept: results/ of the repository, or the folder that LABKIT_RESULTS names."""
    return Path(os.environ.get("LABKIT_RESULTS") or REPOSITORY / "results")


def files() -> list[Path]:
    """The results files, one a GPU, sorted by name; the schema is none of them."""
    return sorted(path for path in folder().glob("*.json") if path.name != SCHEMA.name)


def documents() -> list[dict]:
    """What the results files hold, in the order of `files`. Raises ResultsError for one that breaks the schema."""
    return [_read(path) for path in files()]


def labs() -> set[str]:
    """The labs of which runs are recorded, on any GPU."""
    return {run["lab"] for document in documents() for run in document["runs"]}


def latest(lab: str, gpu: str | None = None) -> tuple[dict, dict] | None:
    """The latest run of `lab` and its GPU, as (gpu, run); None when none is recorded.

    `gpu` is a slug such as "nvidia-h200". Without it, BOOK_GPU is taken where it has recorded the lab, or
    else whichever GPU recorded it last. Raises ResultsError for a file that breaks the schema.
    """
    runs = []
    for document in documents():
        slug = document["gpu"]["slug"]
        if gpu in (None, slug):
            runs += [(slug == BOOK_GPU, run["date"], index, document["gpu"], run)
                     for index, run in enumerate(document["runs"]) if run["lab"] == lab]
    return max(runs, key=lambda entry: entry[:3])[3:] if runs else None


def latest_runs(runs: list[dict]) -> dict[str, dict]:
    """{lab: its latest run}, by the numbers of the labs; of two of the same date the one that was appended later."""
    return dict(sorted({run["lab"]: run for run in sorted(runs, key=lambda run: run["date"])}.items()))


def recorded(lab: str, name: str, gpu: str | None = None) -> Recorded | None:
    """Table `name` of the latest run of `lab` (see `latest`); None when that run has none.

    Tables of different runs are never mixed: what the pages compare was measured in one session.
    """
    found = latest(lab, gpu)
    if found is None or name not in found[1]["tables"]:
        return None
    return Recorded(gpu=found[0], run=found[1], table=found[1]["tables"][name])


def session() -> Session:
    """The running session: its lab (None before `start`), tables and notes."""
    return _session


# -- files --------------------------------------------------------------------------------------------------

def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@functools.lru_cache(maxsize=8)  # the book reads a file hundreds of times
def document(text: str, what: str) -> dict:
    """The text of a results file, read: one object for all who ask, so not to be changed. Raises ResultsError, which names it
    as `what`, where it breaks the schema.
    """
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise ResultsError(f"{what}: not valid JSON: {error}") from error
    _validate(found, what)
    return found


def _read(path: Path) -> dict:
    return document(path.read_text(encoding="utf-8"), str(path))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number that JSON knows")


@functools.cache
def _validator(part: str | None) -> Callable[..., object]:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    if part:
        schema = {"$defs": schema["$defs"], "$ref": f"#/$defs/{part}"}
    return fastjsonschema.compile(schema, use_default=False)


def _validate(document: object, what: str, part: str | None = None) -> None:
    try:
        _validator(part)(document, name_prefix=what)
    except fastjsonschema.JsonSchemaValueException as error:
        raise ResultsError(f"{error.message[:300]}; it is {repr(error.value)[:100]} (results/schema.json)") from None


@contextlib.contextmanager
def _locked(directory: Path):
    """Hold the folder, so that two labs recording at once append one after the other."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def replace(path: Path, text: str) -> None:
    """Write `text` beside `path`, then rename over it: other processes see the old file or the new one."""
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(beside, 0o644)  # mkstemp's files are private
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
