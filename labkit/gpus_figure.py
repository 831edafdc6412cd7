"""Two recorded GPUs beside each other, chosen by the reader: book/figures/compare_gpus.html, filled with what was recorded."""

from __future__ import annotations

import html as markup
import json

from labkit import REPOSITORY, figures, headlines, results

PAGE = REPOSITORY / "book" / "figures" / "compare_gpus.html"
TABLE, DATA = "<!-- table -->", "/* data */"
# (label, lab, table, row, column, unit) of what is compared beside the benchmarks.
_CELLS = (("memory, read", "03_memory_hierarchy", "levels", "memory", "GB/s", "GB/s"),
          ("L2 cache, read", "03_memory_hierarchy", "levels", "L2 cache", "GB/s", "GB/s"),
          ("memory, latency of a load", "03_memory_hierarchy", "levels", "memory", "latency, ns", "ns"),
          ("a training step of chapter 10, our GeLU", "10_case_study", "step", "fused", "ms a step", "ms"))
_RATES = ("GB/s",)  # of these units more is better, of the others less


def measures(document: dict) -> dict[str, dict]:
    """What is compared of one GPU, by its label: unit, value, and low and high (10th, 90th percentile) or None."""
    latest = results.latest_runs(document["runs"])
    found = {f"{figures.title(each.record)}, ours": {
        "unit": "µs", "value": each.ours["median_us"], "low": each.ours["low_us"], "high": each.ours["high_us"]}
        for each in headlines.headlines(latest)}
    for label, lab, name, row, column, unit in _CELLS:
        record = latest[lab]["tables"].get(name, {"rows": []}) if lab in latest else {"rows": []}
        for cells in record["rows"]:
            if row in cells.values() and isinstance(cells.get(column), (int, float)):
                found[label] = {"unit": unit, "value": cells[column], "low": cells.get("10%, ms"), "high": cells.get("90%, ms")}
    return found


def html(documents: list[dict]) -> str:
    """The figure for results files of two GPUs or more: a switch, and without JavaScript the table of all of them."""
    gpus = [{"name": document["gpu"]["name"], "measures": measures(document)} for document in documents]
    labels = list(dict.fromkeys(label for gpu in gpus for label in gpu["measures"]))
    data = json.dumps({"labels": labels, "rates": _RATES, "gpus": gpus}, ensure_ascii=True).replace("</", "<\\/")
    return PAGE.read_text(encoding="utf-8").replace(TABLE, _table(labels, gpus)).replace(DATA, data)


def _table(labels: list[str], gpus: list[dict]) -> str:
    head = "".join(f"<th>{_ascii(gpu['name'])}</th>" for gpu in gpus)
    rows = "".join(f"<tr><td>{_ascii(label)}</td>" + "".join(f"<td>{_ascii(_cell(gpu['measures'].get(label)))}</td>"
                                                             for gpu in gpus) + "</tr>" for label in labels)
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cell(measure: dict | None) -> str:
    return f"{figures.number(measure['value'])} {measure['unit']}" if measure else "–"


def _ascii(text: str) -> str:
    """Text for a page that may say no encoding."""
    return markup.escape(text).encode("ascii", "xmlcharrefreplace").decode()
