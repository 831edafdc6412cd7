"""`python -m labkit record [FILE]`: a reader's GPU joins results/, once its figures are such as a GPU can have.

A results file is checked against results/schema.json, and of each lab the latest run is held against what the machine allows:
the bandwidth of its memory, the times' own spread, and the sources that are here. Whatever is implausible is refused with its
reason, and then nothing is written. Else the runs are added to those that are recorded.
"""

from __future__ import annotations

import datetime
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from labkit import REPOSITORY, machine, outdated, results, sources

SPREAD = 0.25  # of the median: from the 10th to the 90th percentile. Steady machines stay below 0.07, disturbed ones reach 2.9
OVER_A_COPY = 1.25  # a kernel that mostly reads can be this much faster than a copy, for want of the memory's own limit
ROUNDING = 0.01  # what may lie between a number and those that it is calculated from
DONE, REFUSED, UNREADABLE = 0, 1, 2  # exit statuses
_STEP = "ms a step"  # a column of training steps, which are timed by the median too
_SAME_GPU = ("name", "capability", "sms", "l2_mib", "bus_bits")  # what two records of one GPU agree in


def record(file: str | None = None) -> int:
    """Checks a results file and adds its runs to results/; prints what was refused, or what to commit.

    file: a results file, of this machine or another; when left out, the one that the labs wrote for this machine's GPU. Of each
    lab the latest run counts. Returns DONE, REFUSED where a figure is implausible, UNREADABLE where there is no such file or it
    breaks the schema; in the last two nothing is changed.
    """
    try:
        path = Path(file) if file else _own()
        document = results.document(path.read_text(encoding="utf-8"), str(path))
        reasons = problems(document)
        if reasons:
            print(f"{path}: refused, and nothing was changed.", file=sys.stderr)
            print("\n".join(f"  {reason}" for reason in reasons), file=sys.stderr)
            print("With nothing else running on the GPU, measure those labs again (python3 -m labkit labs NN), then record "
                  "again.", file=sys.stderr)
            return REFUSED
        latest = list(results.latest_runs(document["runs"]).values())
        target, added = results.append(document["gpu"], latest)
    except (OSError, UnicodeDecodeError, results.ResultsError) as error:
        print(f"record: {error}", file=sys.stderr)
        return UNREADABLE
    _say(document, latest, target, added)
    return DONE


def _own() -> Path:
    here = machine.gpu() if machine.backend() == "cuda" else None
    if here is None:
        raise results.ResultsError("there is no GPU here that could have recorded; name a results file of another machine: "
                                   "python3 -m labkit record FILE")
    path = results.folder() / f"{here['slug']}.json"
    if not path.exists():
        raise results.ResultsError(f"{here['name']} has recorded nothing yet, and there is no {path}; run `make labs` first")
    return path


def _say(document: dict, latest: list[dict], target: Path, added: list[dict]) -> None:
    print(f"{document['gpu']['name']}: the latest run of {len(latest)} labs is plausible; {len(added)} added to {target}, "
          f"{len(latest) - len(added)} there already.")
    if earlier := len(document["runs"]) - len(latest):
        print(f"Of earlier runs of the same labs the file holds {earlier}; they were not looked at.")
    missing = sorted({path.stem for path in (REPOSITORY / "labs").glob("[0-9]*.ipynb")} - {run["lab"] for run in latest})
    if missing:
        print(f"Not recorded yet: {', '.join(missing)}.")
    slug = document["gpu"]["slug"]
    paths = [target, *(path for path in [results.folder() / "reports" / slug] if path.exists())]
    shown = [path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path for path in paths]
    print(f"Commit it: git add {' '.join(map(str, shown))}")
    if slug == results.BOOK_GPU:
        print("The pages print this GPU's figures: renew the labs' outputs with python3 -m labkit labs --save, and the "
              "README's table with python3 -m labkit.readme.")


# -- what cannot be -----------------------------------------------------------------------------------------

def problems(document: dict) -> list[str]:
    """What is implausible in the latest run of each lab of a results file, each with its reason; empty where nothing is."""
    latest = results.latest_runs(document["runs"])
    return [*_of_gpu(document["gpu"]), *_changed(document["gpu"], latest),
            *(problem for run in latest.values() for problem in _of_run(run)), *_too_fast(document["gpu"], latest)]


def _changed(gpu: dict, latest: dict[str, dict]) -> Iterator[str]:
    there = {(run["lab"], run["date"]): run for document in results.documents() if document["gpu"]["slug"] == gpu["slug"]
             for run in document["runs"]}
    yield from (f"{lab}: a run of {run['date']} is recorded already, with other figures" for lab, run in latest.items()
                if there.get((lab, run["date"]), run) != run)


def _of_gpu(gpu: dict) -> Iterator[str]:
    if gpu["slug"] != machine.slug(gpu["name"]):
        yield f"the GPU {gpu['name']!r} must have the slug {machine.slug(gpu['name'])!r}, and has {gpu['slug']!r}"
    for known in (document["gpu"] for document in results.documents() if document["gpu"]["slug"] == gpu["slug"]):
        yield from (f"another GPU than the one recorded as {gpu['slug']}: {key} is {gpu[key]}, and there {known[key]}; a part "
                    "of a GPU (MIG) is not recorded as the whole" for key in _SAME_GPU
                    if key in gpu and key in known and gpu[key] != known[key])


def _of_run(run: dict) -> Iterator[str]:
    lab = run["lab"]
    try:
        if run["sources"] not in outdated.may_carry(lab):
            yield f"{lab}: it ran other sources ({run['sources']}) than those that are here ({sources.sources_hash(lab)})"
    except FileNotFoundError:
        yield f"{lab}: there is no such lab here"
    if run["date"] > (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)).isoformat():
        yield f"{lab}: it is dated {run['date']}, and that day has not come; set the machine's clock"
    for name, table in run["tables"].items():
        check = {"bench": _of_bench, "table": _of_steps}.get(table["kind"])
        yield from (f"{lab}, {name}: {problem}" for problem in (check(table) if check else ()))


def _of_bench(table: dict) -> Iterator[str]:
    names = [row["name"] for row in table["rows"]]
    limit = next((row for row in table["rows"] if row["name"] == table["limit"]), None)
    if len(set(names)) < len(names):
        yield "two of its rows have one name"
    if table["limit"] and not limit:
        yield f"its limit {table['limit']!r} is none of its rows"
    bits = re.search(r"\d+", table["dtype"])
    least = math.prod(table["size"]) * int(bits[0]) // 8 if bits else 0
    if table["bytes"] and table["bytes"] < least:
        yield f"it moves {table['bytes']:,} bytes, and one tensor of its size has {least:,}"
    for row in table["rows"]:
        yield from (f"{row['name']}: {problem}" for problem in _of_row(row, table["bytes"], limit))


def _of_row(row: dict, moved: int | None, limit: dict | None) -> Iterator[str]:
    if not row["low_us"] <= row["median_us"] <= row["high_us"]:
        yield (f"the median, {row['median_us']:.4g} µs, lies outside of its own 10th to 90th percentile, "
               f"{row['low_us']:.4g} to {row['high_us']:.4g} µs")
    if not row["host_bound"]:  # a GPU that waits for the host takes what the host takes
        yield from _too_wide(row["low_us"], row["median_us"], row["high_us"], "µs")
    for name, unit, told, right in (
            ("rate", " GB/s", row["gbps"], moved and moved / row["median_us"] / 1e3),
            ("share of the limit", "", row["of_limit"], limit and limit["median_us"] / row["median_us"])):
        if (told is None) != (right is None) or right and abs(told / right - 1) > ROUNDING:
            yield f"its {name} is given as {_told(told)}{unit}, and its time makes it {_told(right)}{unit}"


def _told(value: float | None) -> str:
    return "none" if value is None else f"{value:,.4g}"


def _too_wide(low: float, median: float, high: float, unit: str) -> Iterator[str]:
    if high - low > SPREAD * median:
        yield (f"the spread is too wide, {low:.4g} to {high:.4g} {unit} (10 to 90%) about {median:.4g} {unit}: more than "
               f"{SPREAD:.0%} of the median")


def _of_steps(table: dict) -> Iterator[str]:
    if _STEP not in table["columns"]:
        return
    for row in table["rows"]:
        name, median = row[table["columns"][0]], row[_STEP]
        if median is not None and median <= 0:
            yield f"{name}: a step takes {median} ms"
        elif median and row.get("10%, ms") and row.get("90%, ms"):
            if not row["10%, ms"] <= median <= row["90%, ms"]:
                yield (f"{name}: the median, {median:.4g} ms, lies outside of its own 10th to 90th percentile, "
                       f"{row['10%, ms']:.4g} to {row['90%, ms']:.4g} ms")
            yield from (f"{name}: {problem}" for problem in _too_wide(row["10%, ms"], median, row["90%, ms"], "ms"))


def _too_fast(gpu: dict, latest: dict[str, dict]) -> Iterator[str]:
    """Rows of benchmarks that move more bytes a second than the memory can."""
    copied = _copied(gpu, latest)
    for lab, run in latest.items():
        most, why = _peak(gpu, run) or copied or (math.inf, "")
        for name, table in run["tables"].items():
            if table["kind"] == "bench":
                yield from (f"{lab}, {name}, {row['name']}: {rate:,.0f} GB/s to and from memory is more than {most:,.0f}, {why}"
                            for row in table["rows"] if (rate := _from_memory(gpu, table, row)) > most)


def _from_memory(gpu: dict, table: dict, row: dict) -> float:
    """GB/s that a row of a benchmark must have moved between memory and L2; 0 where L2 may have held half of the bytes.

    What was stored last may still be in L2 when the kernel ends, so as many bytes as L2 holds do not count.
    """
    cache = gpu["l2_mib"] * 2**20
    return (table["bytes"] - cache) / row["median_us"] / 1e3 if table["bytes"] and table["bytes"] > 2 * cache else 0.0


def _peak(gpu: dict, run: dict) -> tuple[float, str] | None:
    """The memory's own limit in GB/s, with how it is calculated; None where its clock or its width is not known."""
    clock, bits = (run["clocks"] or {}).get("memory_max_mhz"), gpu.get("bus_bits")
    if not clock or not bits:
        return None
    return clock * 2 * bits / 8 / 1e3, f"what {clock:.0f} MHz, twice a clock, and {bits} bits allow"


def _copied(gpu: dict, latest: dict[str, dict]) -> tuple[float, str] | None:
    """The same from the fastest recorded copy: that of the GPU's record in results/ where there is one, else the file's own."""
    same = [document for document in results.documents() if document["gpu"]["slug"] == gpu["slug"]]
    for runs in (*(results.latest_runs(document["runs"]) for document in same), latest):
        rates = [_from_memory(gpu, table, row) for run in runs.values() for table in run["tables"].values()
                 if table["kind"] == "bench" for row in table["rows"] if row["name"] in ("copy", "clone")]
        if fastest := max(rates, default=0.0):
            return OVER_A_COPY * fastest, f"{OVER_A_COPY} times the fastest recorded copy"
    return None
