"""`python -m labkit compare OLD NEW`: the benchmarks of two records beside each other, each with its spread.

A record is a file of results/, or what such a file was in a revision of git. Of each lab the latest run counts. A row of a
benchmark is "slower" or "faster" only where its 10th to 90th percentiles in the two records have no time in common; else the
difference of the medians is "within the spread". A row whose GPU waited for the host says nothing of a kernel, and is told
apart; where it did not wait before, that is a change too. Two runs differ by more than one run's spread, in clocks and in
temperature; that meets the limit of a benchmark as well, so each row's share of its limit is shown beside its time.
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections import Counter
from pathlib import Path

from labkit import REPOSITORY, figures, results

SLOWER, FASTER, WITHIN = "slower", "faster", "within the spread"
HOST, NOW_HOST = "waits for the host", "waits for the host now"
THRESHOLD = 5.0  # per cent by which a row may be slower before `compare` fails
SAME, GOT_SLOWER, REFUSED = 0, 1, 2  # exit statuses
_MEASURED = ("size", "dtype", "bytes", "limit")  # of a benchmark: where these differ, its rows are of something else


class NotComparable(ValueError):
    """A record cannot be found or read, or two records are of different GPUs; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Change:
    """One row of a benchmark in both records; times in microseconds. limit: whether the others are held against it.

    of_limit: its share of the limit's speed in each record, None where there is no limit.
    """

    lab: str
    table: str
    name: str
    old: float
    new: float
    verdict: str
    limit: bool
    of_limit: tuple[float | None, float | None]

    @property
    def ratio(self) -> float:
        """The new median over the old one: above 1 it takes longer."""
        return self.new / self.old


def compare(old: str, new: str | None = None, threshold: float = THRESHOLD, other_gpu: bool = False,
            everything: bool = False) -> int:
    """Prints which benchmarks became faster or slower from one record to the other; returns the exit status.

    old, new: each a file of results/, or REVISION:FILE as git has it, such as HEAD~1:results/nvidia-h200.json. Without `new`
    the latest run of each lab in `old` is compared with the run before it. threshold: a row that is slower by more per cent
    than this, and outside of the spread or because it waits for the host now, makes the status 1. other_gpu: compare records of
    different GPUs too. everything: list the rows within the spread as well.

    Returns 0 where nothing became slower by more than the threshold, 1 where something did, 2 where the two cannot be compared.
    """
    try:
        before, after = _runs(old, new)
        differences = _differences(before, after)
        if before[0]["slug"] != after[0]["slug"] and not other_gpu:
            raise NotComparable("the records are of different GPUs; their times say nothing of a change of code.\n"
                                + "\n".join(f"  {line}" for line in differences)
                                + "\nWith --other-gpu they are compared all the same.")
    except NotComparable as error:
        print(f"compare: {error}")
        return REFUSED
    found, left_out = changes(before[1], after[1])
    print("\n".join([f"{old}, and {new or 'the run before'}: {len(found)} rows of benchmarks in both.",
                     *differences, *left_out]))
    return _told(found, threshold, everything)


def changes(before: dict[str, dict], after: dict[str, dict]) -> tuple[list[Change], list[str]]:
    """The rows of benchmarks that two sets of runs, {lab: run}, share; and what is in one alone, or measured anew, in words."""
    found, left_out = [], []
    for lab in sorted({*before, *after}):
        tables = [{name: table for name, table in runs.get(lab, {"tables": {}})["tables"].items() if table["kind"] == "bench"}
                  for runs in (before, after)]
        for name in sorted({*tables[0], *tables[1]}):
            old, new = (of.get(name) for of in tables)
            if old is None or new is None:
                left_out.append(f"{lab}, {name}: only in the {'new' if old is None else 'old'} record")
            elif differ := [key for key in _MEASURED if old[key] != new[key]]:
                left_out.append(f"{lab}, {name}: measured something else, "
                                + ", ".join(f"{key} {old[key]} → {new[key]}" for key in differ))
            else:
                rows = [{row["name"]: row for row in table["rows"]} for table in (old, new)]
                found += [Change(lab, name, row, rows[0][row]["median_us"], rows[1][row]["median_us"],
                                 verdict(rows[0][row], rows[1][row]), row == old["limit"],
                                 (rows[0][row]["of_limit"], rows[1][row]["of_limit"])) for row in rows[0] if row in rows[1]]
                left_out += [f"{lab}, {name}, {row}: only in the {'old' if row in rows[0] else 'new'} record"
                             for row in {**rows[0], **rows[1]} if (row in rows[0]) != (row in rows[1])]
    return found, left_out


def verdict(old: dict, new: dict) -> str:
    """SLOWER, FASTER, WITHIN, HOST or NOW_HOST, of two rows of a benchmark as results/schema.json describes them."""
    if old["host_bound"] or new["host_bound"]:
        return HOST if old["host_bound"] else NOW_HOST
    if new["low_us"] > old["high_us"]:
        return SLOWER
    return FASTER if new["high_us"] < old["low_us"] else WITHIN


def _told(found: list[Change], threshold: float, everything: bool) -> int:
    shown = [change for change in found if everything or change.verdict in (SLOWER, FASTER, NOW_HOST)]
    if shown:
        rows = [{"benchmark": f"{change.lab}, {change.table}", "variant": change.name + (", the limit" if change.limit else ""),
                 "old, µs": change.old, "new, µs": change.new, "ratio": figures.ratio(change.ratio),
                 "of limit": " → ".join("–" if share is None else figures.percent(share) for share in change.of_limit),
                 "verdict": change.verdict}
                for change in sorted(shown, key=lambda change: -change.ratio)]
        print(figures.text_table(results.table_of("", rows)))
    counts = Counter(change.verdict for change in found)
    told = [f"{counts[word]} {word}" for word in (SLOWER, FASTER, WITHIN, HOST, NOW_HOST) if counts[word]]
    print(", ".join(told) or "nothing to compare")
    if moved := [change for change in found if change.limit and change.verdict in (SLOWER, FASTER)]:
        print(f"The limit itself moved in {', '.join(change.table for change in moved)}: it computes nothing, so look for a "
              "change of the machine, its clocks or its neighbours before one of the code.")
    failed = [change for change in found if change.verdict in (SLOWER, NOW_HOST) and change.ratio > 1 + threshold / 100]
    if failed:
        print(f"{len(failed)} slower by more than {threshold:g}%.")
    return GOT_SLOWER if failed else SAME


# -- reading ------------------------------------------------------------------------------------------------

def _runs(old: str, new: str | None) -> tuple[tuple[dict, dict[str, dict]], tuple[dict, dict[str, dict]]]:
    """(GPU, {lab: run}) of each record."""
    first = _document(old)
    if new is not None:
        second = _document(new)
        return (first["gpu"], results.latest_runs(first["runs"])), (second["gpu"], results.latest_runs(second["runs"]))
    latest = results.latest_runs(first["runs"])
    earlier = results.latest_runs([run for run in first["runs"] if run is not latest[run["lab"]]])
    if not earlier:
        raise NotComparable(f"{old} has one run of each lab; name a second record to compare it with")
    return (first["gpu"], earlier), (first["gpu"], {lab: run for lab, run in latest.items() if lab in earlier})


def _document(source: str) -> dict:
    try:
        return results.document(_text(source), source)
    except results.ResultsError as error:
        raise NotComparable(str(error)) from None


def _text(source: str) -> str:
    if Path(source).is_file():
        return Path(source).read_text(encoding="utf-8")
    if ":" not in source:
        raise NotComparable(f"there is no file {source!r}; a revision's is named like HEAD~1:results/nvidia-h200.json")
    shown = subprocess.run(["git", "show", source], cwd=REPOSITORY, capture_output=True, text=True, encoding="utf-8")
    if shown.returncode:
        raise NotComparable(f"git does not show {source!r}: {shown.stderr.strip()}")
    return shown.stdout


def _differences(before: tuple[dict, dict], after: tuple[dict, dict]) -> list[str]:
    """In what the two records differ beside their times: the GPU; of each lab versions and sources."""
    lines = [f"GPU: {before[0]['name']} → {after[0]['name']}"] if before[0]["name"] != after[0]["name"] else []
    by_words: dict[str, list[str]] = {}
    for lab in sorted({*before[1]} & {*after[1]}):
        old, new = before[1][lab], after[1][lab]
        told = [f"{key} {old['versions'].get(key)} → {new['versions'].get(key)}"
                for key in sorted({*old["versions"], *new["versions"]}) if old["versions"].get(key) != new["versions"].get(key)]
        if old["sources"] != new["sources"]:
            told.append("its sources")
        if told:
            by_words.setdefault(", ".join(told), []).append(lab)
    return lines + [f"{', '.join(labs)}: {words}" for words, labs in by_words.items()]
