"""The results block of README.md, made from the recorded runs: `python -m labkit.readme` brings it up to date."""

from __future__ import annotations

import re
from pathlib import Path

from labkit import figures, outdated, results

LAB = "04_fused_kernel"
TABLES = {"forward": "forward", "backward": "backward", "forward_backward": "forward + backward"}
MARKS = ("<!-- results:begin -->", "<!-- results:end -->")


def block() -> str:
    """What stands between MARKS: the fused kernel's figures, or a line saying that none are recorded.

    Of a ladder ("v1", "v2", ...) only the last rung is listed, the one that the operator runs; the chapter has all.
    """
    tables = {head: results.recorded(LAB, name) for name, head in TABLES.items()}
    tables = {head: found for head, found in tables.items() if found}
    if not tables:
        return "No results are recorded yet: run the labs on a GPU, then `python -m labkit.readme`."
    first = next(iter(tables.values()))
    size = " × ".join(map(str, first.table["size"]))
    lines = [f"{first.caption()}; {size} {first.table['dtype']}, median of {first.table['rounds']} interleaved calls. "
             "The first row of each is the limit: the same bytes moved, next to nothing computed.",
             *outdated.remarks([first.run]), "",
             "| GeLU | variant | µs | GB/s | of the limit |", "|---|---|---:|---:|---:|"]
    for head, found in tables.items():
        for name, row in _headline(found.table["rows"]):
            share = figures.percent(row["of_limit"]) if row["of_limit"] else "–"
            lines.append(f"| {head} | {name} | {figures.microseconds(row['median_us'])} | {row['gbps']:,.0f} | {share} |")
            head = ""
    return "\n".join(lines)


def _headline(rows: list[dict]) -> list[tuple[str, dict]]:
    rungs = [row for row in rows if re.fullmatch(r"v\d+", row["name"])]
    named = [(row["name"], row) for row in rows if row not in rungs]
    return named + [(f"ours ({row['name']})", row) for row in rungs[-1:]]


def write(path: Path) -> bool:
    """Bring the results block of the README at `path` up to date; True when it had to change."""
    text = path.read_text(encoding="utf-8")
    begin, end = (text.find(mark) for mark in MARKS)
    if not 0 <= begin < end:
        raise results.ResultsError(f"{path} has no block between {MARKS[0]} and {MARKS[1]}")
    new = f"{text[:begin]}{MARKS[0]}\n{block()}\n{text[end:]}"
    if new != text:
        results.replace(path, new)
    return new != text


if __name__ == "__main__":
    changed = write(results.REPOSITORY / "README.md")
    print("README.md: the results block " + ("was brought up to date" if changed else "is as recorded"))
