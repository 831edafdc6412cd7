"""What the appendix of results tells of one GPU: its facts, and a few benchmarks with the best of ours and of its rivals."""

from __future__ import annotations

import dataclasses
import re

from labkit import REPOSITORY, figures, results

TITLE, SHARES = "Benchmarks in short", "Speed, in per cent of the limit's"
# (lab, table) of the benchmarks, in the order of the page.
BENCHMARKS = (("04_fused_kernel", "forward"), ("04_fused_kernel", "backward"), ("04_fused_kernel", "forward_backward"),
              ("03_memory_hierarchy", "transpose_float32"), ("03_memory_hierarchy", "stencil"),
              ("09_profiling_80_20", "softmax"), ("09_profiling_80_20", "softmax_backward"),
              ("09_profiling_80_20", "add_norm"), ("09_profiling_80_20", "add_norm_backward"))
FIGURES = (("03_memory_hierarchy", "levels"), ("03_memory_hierarchy", "levels_latency"), ("03_memory_hierarchy", "in_flight"),
           ("09_profiling_80_20", "roofline_figure"))
_OURS = re.compile(r"v\d+|ours\b.*")  # rows of our kernels; the others, but for the limit, are rivals


@dataclasses.dataclass(frozen=True)
class Headline:
    """One benchmark: its record, and the rows of its limit, our fastest and the fastest rival; None where there is no rival."""

    record: dict
    limit: dict
    ours: dict
    rival: dict | None


def headlines(latest: dict[str, dict]) -> list[Headline]:
    """Those of BENCHMARKS that a GPU's latest runs, {lab: run}, hold with a limit and a row of ours."""
    found = []
    for lab, name in BENCHMARKS:
        record = latest[lab]["tables"].get(name) if lab in latest else None
        if record is None:
            continue
        limit = next((row for row in record["rows"] if row["name"] == record["limit"]), None)
        ours = [row for row in record["rows"] if _OURS.fullmatch(row["name"])]
        rivals = [row for row in record["rows"] if row is not limit and row not in ours]
        if limit and ours:
            found.append(Headline(record, limit, _fastest(ours), _fastest(rivals) if rivals else None))
    return found


def _fastest(rows: list[dict]) -> dict:
    return min(rows, key=lambda row: row["median_us"])


def table(found: list[Headline]) -> dict:
    """The benchmarks as one record of kind "table", a row each."""
    def microseconds(row: dict | None) -> float | None:
        return round(row["median_us"], 1) if row else None

    return results.table_of(TITLE, [
        {"benchmark": figures.title(each.record), "limit, µs": microseconds(each.limit),
         "best rival": each.rival and each.rival["name"], "its µs": microseconds(each.rival),
         "ours, µs": microseconds(each.ours), "ours, of the limit": figures.percent(each.ours["of_limit"])} for each in found])


def shares(found: list[Headline]) -> dict:
    """The speed of ours and of the best rival, in per cent of the limit's, as a record that is drawn as bars."""
    rows = [{"benchmark": each.record["title"], "ours": round(100 * each.ours["of_limit"], 1),
             "best rival": round(100 * each.rival["of_limit"], 1) if each.rival else None} for each in found]
    return results.table_of(SHARES, rows, bars={"columns": ["ours", "best rival"], "label": "% of the limit's speed"})


def facts(document: dict) -> dict[str, str]:
    """{what: value} of the machine of a results file, in words; what is not known is left out."""
    gpu, latest = document["gpu"], results.latest_runs(document["runs"])
    runs = latest.values()

    def of_runs(part: str, key: str, unit: str = "") -> str:
        values = {(run[part] or {}).get(key) for run in runs} - {None}
        return ", ".join(f"{figures.number(value)}{unit}" for value in sorted(values))

    known = {path.stem for path in (REPOSITORY / "labs").glob("[0-9]*.ipynb")}
    days = sorted(run["date"][:10] for run in runs)
    told = {
        "GPU": f"{gpu['name']}, compute capability {gpu['capability']}, {gpu['sms']} SMs",
        "memory": f"{figures.number(gpu['memory_gib'])} GiB, L2 cache {figures.number(gpu['l2_mib'])} MiB",
        "highest clocks": ", ".join(f"{name} {clock}" for name, clock in (
            ("SM", of_runs("clocks", "sm_max_mhz", " MHz")), ("memory", of_runs("clocks", "memory_max_mhz", " MHz"))) if clock),
        "power limit": of_runs("clocks", "power_limit_w", " W"),
        **{name: of_runs("versions", key) for name, key in (
            ("driver", "driver"), ("CUDA of torch", "cuda"), ("nvcc", "nvcc"), ("torch", "torch"), ("Triton", "triton"),
            ("Python", "python"), ("platform", "platform"))},
        "measured": " to ".join(dict.fromkeys([*days[:1], *days[-1:]])),
        "labs": ", ".join(lab.partition("_")[0] for lab in latest),
        "not recorded": ", ".join(sorted(known - set(latest))),
    }
    return {name: value for name, value in told.items() if value}
