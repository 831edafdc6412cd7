"""`beside_the_article`: the article's table of its case study beside the reader's, and what Amdahl's law says of both."""

from __future__ import annotations

from labkit import machine, results
from labkit.report import NO_GPU, keep, show_recorded
from labkit.share import cap_curve

# Of a 24-layer Transformer on 8 A100s: the variant that is its like, ms a step, GB.
STAGES = {"nothing fused": ("composed", 1520, 38.7), "forward fused": ("fused forward", 1280, 36.2),
          "forward and gradient fused": ("fused", 890, 32.1)}
SHARE = 15.0  # per cent of the time of a step in GeLU, which it says of a Transformer of 50 layers


def beside_the_article(name: str, measured: list[dict], title: str) -> list[dict]:
    """Shows and keeps the article's stages beside the same stages here, and the most that the share of GeLU allows.

    name: what the table is called in results/; <name>_cap holds the shares and the caps, <name>_cap_curve the cap over the
    share. measured: the rows that `step_share` returned; [] where nothing was measured, and then the recorded tables are shown.
    title: the tables' head.

    Returns the rows of the first: stage; ms a step, per cent saved of the first stage, and memory, of both. ValueError where a
    variant of STAGES was not measured.
    """
    by_label = {row["variant"]: row for row in measured}
    ours = [by_label.get(variant) for variant, _, _ in STAGES.values()]
    if measured and None in ours:
        raise ValueError(f"beside_the_article: measured has {', '.join(by_label)}; it needs "
                         f"{', '.join(variant for variant, _, _ in STAGES.values())}")
    names = [name, f"{name}_cap", f"{name}_cap_curve"]
    if not measured or any(row["ms a step"] is None for row in ours):
        why = NO_GPU if machine.backend() != "cuda" else "memory ran out in one of the stages"
        return show_recorded(names, title, why)
    rows = [{"stage": stage, "article, ms": ms, "article, saved, %": _saved(ms, 1520), "here, ms": row["ms a step"],
             "here, saved, %": _saved(row["ms a step"], ours[0]["ms a step"]),
             "article, GB": gb, "here, GiB": row["memory, GiB"],
             "article, GB saved, %": _saved(gb, 38.7), "here, GiB saved, %": _saved(row["memory, GiB"], ours[0]["memory, GiB"])}
            for (stage, (_, ms, gb)), row in zip(STAGES.items(), ours)]
    caps = [_capped("the article", SHARE, 1520 / 890),
            _capped("here", ours[0]["its share, %"], ours[0]["ms a step"] / ours[2]["ms a step"])]
    keep(dict(zip(names, (results.table_of(title, rows), results.table_of(f"{title}: what the share allows", caps),
                          cap_curve(f"{title}: what the share allows", caps, "times as fast")))))
    return rows


def _saved(after: float, before: float) -> float:
    return round(100 * (1 - after / before), 1)


def _capped(model: str, share: float, faster: float) -> dict:
    return {"model": model, "share, %": share, "cap": round(1 / (1 - share / 100), 2), "times as fast": round(faster, 2),
            "share that this needs, %": round(100 * (1 - 1 / faster), 1)}
