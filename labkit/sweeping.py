"""`geometry` and `achieved`: an operator's time and occupancy over threads a block and elements a thread.

The operator has, as kernels/geometry, `ops.sweep(x, version, threads)` and `ops.occupancy(x, version, threads)`, and in its
reference VERSIONS, {order: {elements a thread: version}}, and ARTICLE, the geometry to mark.

Nsight Compute runs this module as a program of its own (`python -m labkit.sweeping NAME ELEMENTS DTYPE GEOMETRIES`), which
launches each geometry once between cudaProfilerStart and cudaProfilerStop.
"""

from __future__ import annotations

import json
import sys
from typing import Sequence

import torch

from labkit import results
from labkit.empty_grid import empty_blocks
from labkit.occupancy import limits
from labkit.operator import Operator
from labkit.profiling import NotCounted, profile
from labkit.report import NO_GPU, keep, show_recorded
from labkit.timing import timed

THREADS = (32, 64, 128, 256, 512, 1024)
ORDERS = ("consecutive", "apart")
_TITLES = {"consecutive": "consecutive elements", "apart": "elements a block's width apart"}
_METRICS = {"achieved": "sm__warps_active.avg.pct_of_peak_sustained_active"}


def geometry(name: str, operator: Operator, n: int, dtype: str, threads: Sequence[int] = THREADS,
             orders: Sequence[str] = ORDERS, rounds: int = 30, title: str = "GeLU") -> dict[str, dict]:
    """Times an operator in every launch geometry, in turn with a copy of the same bytes and with its rivals.

    name: what the records are called in results/: `name` a table, `name`_`order` a heat map in GB/s for each order,
    `name`_starts what the same grids take with nothing in them, in per cent of the time in the last order. n: of
    elements. dtype: a torch dtype's name, such as "bfloat16". threads: of a block. orders: keys of the reference's
    VERSIONS. rounds: timed calls a geometry. title: the head of all.

    It is timed as `bench` does, and every output is held against the float64 reference. A cell is None where the
    GPU waited for Python. The table has the copy, the rivals, the article's geometry and the fastest.

    Returns {order: the heat record}. Without a GPU nothing is run; the recorded ones are shown and {} is returned. Raises
    WrongResult as `bench` does, and ValueError for an order that the operator has not.
    """
    versions = _versions(operator, orders)
    if operator.backend != "cuda":
        show_recorded([name, *(f"{name}_{order}" for order in orders), f"{name}_starts"], title)
        return {}

    rivals = {"copy": torch.clone, **operator.rivals.forward()}
    places = _places(versions, threads)
    ours = {_label(*place): lambda x, place=place: operator.ops.sweep(x, *place) for place in places}
    kind = getattr(torch, dtype)
    exact = operator.reference.MODES["forward"][2]
    record = timed({**rivals, **ours}, lambda: (torch.randn(n, dtype=kind, device=operator.device),),
                   bytes=2 * n * kind.itemsize, limit="copy", reference=lambda x: exact(x.double())[0],
                   tolerance=(2 * torch.finfo(kind).eps, 1e-5), rounds=rounds, title=title)
    rows = {row["name"]: row for row in record["rows"]}
    lines = [{"label": label, "value": rows[label]["gbps"]} for label in rivals]
    speed = {place: None if rows[_label(*place)]["host_bound"] else rows[_label(*place)]["gbps"] for place in places}
    heats = {order: _heat(operator, _title(title, order), "GB/s", order, versions[order], threads, speed, lines)
             for order in orders}
    table = {**record, "rows": [rows[label] for label in rivals] + _chosen(operator, versions, threads, rows)}
    results.note("measured", name, f"{len(places)} geometries, {rounds} rounds")
    keep({name: table, **{f"{name}_{order}": heat for order, heat in heats.items()},
          f"{name}_starts": _starts(operator, n, kind, orders[-1], threads, rounds, title, rows)})
    return heats


def _starts(operator: Operator, n: int, kind: torch.dtype, order: str, threads: Sequence[int], rounds: int, title: str,
            rows: dict[str, dict]) -> dict:
    """The share of each geometry's time that its grid takes with nothing in it, as a "heat" record."""
    of_order = operator.reference.VERSIONS[order]
    grids = {(version, t): (-(-n // (t * elements)), t) for elements, version in of_order.items() for t in threads}
    empty = timed({str(grid): lambda x, grid=grid: empty_blocks(*grid) for grid in dict.fromkeys(grids.values())},
                  lambda: (torch.zeros(1, dtype=kind, device=operator.device),), bytes=None, limit=None, reference=None,
                  tolerance=None, rounds=rounds, title=title)
    took = {row["name"]: row["median_us"] for row in empty["rows"]}
    share = {place: 100 * took[str(grid)] / rows[_label(*place)]["median_us"] for place, grid in grids.items()}
    return _heat(operator, f"{_title(title, order)}: the grid alone, with nothing in it", "%", order, of_order, threads,
                 {place: None if rows[_label(*place)]["host_bound"] else value for place, value in share.items()})


def achieved(name: str, operator: Operator, n: int, dtype: str, threads: Sequence[int] = THREADS,
             orders: Sequence[str] = ORDERS, title: str = "GeLU") -> dict[str, dict]:
    """Measures how many of an SM's warp slots are filled, on average, in every launch geometry, by Nsight Compute.

    Arguments as for `geometry`. For each order two heat maps are shown and kept, in per cent: `name`_`order`, what was
    achieved, and `name`_`order`_limit, what the SM's limits allow, by CUDA's own count of the blocks that fit.

    Returns {order: the achieved record}. Without a GPU, or where Nsight Compute is missing, refused or silent, it says so,
    shows the recorded ones and returns {}. Raises ValueError for an order that the operator has not.
    """
    versions = _versions(operator, orders)
    titles = {order: (f"{_title(title, order)}: warp slots filled", f"{_title(title, order)}: warp slots that can be filled")
              for order in orders}
    why = NO_GPU
    if operator.backend == "cuda":
        places = _places(versions, threads)
        program = ["-m", "labkit.sweeping", operator.name, str(n), dtype, json.dumps(places)]
        try:
            counted = profile(_METRICS, program, len(places))
        except NotCounted as error:
            why = str(error)
        else:
            filled = {place: launch["achieved"] for place, launch in zip(places, counted)}
            possible = _possible(operator, places, dtype)
            found = {}
            for order, (achieved_title, limit_title) in titles.items():
                found[order] = _heat(operator, achieved_title, "%", order, versions[order], threads, filled)
                limit = _heat(operator, limit_title, "%", order, versions[order], threads, possible)
                keep({f"{name}_{order}": found[order], f"{name}_{order}_limit": limit})
            results.note("measured", name, f"{len(places)} geometries counted by Nsight Compute")
            return found
    show_recorded([f"{name}_{order}{suffix}" for order in orders for suffix in ("", "_limit")], title, why)
    return {}


def _versions(operator: Operator, orders: Sequence[str]) -> dict[str, dict[int, int]]:
    known = getattr(getattr(operator, "reference", None), "VERSIONS", None)
    if known is None:
        raise TypeError(f"operator is {operator!r}; it has to be labkit.load(\"geometry\"), whose versions are geometries")
    if unknown := [order for order in orders if order not in known]:
        raise ValueError(f"{operator.name}: orders holds {unknown[0]!r}; it has {', '.join(known)}")
    return {order: known[order] for order in orders}


def _places(versions: dict[str, dict[int, int]], threads: Sequence[int]) -> list[tuple[int, int]]:
    """(version, threads) of every launch, each once: one element a thread is the same in both orders."""
    return [(version, t) for version in sorted({v for of in versions.values() for v in of.values()}) for t in threads]


def _label(version: int, threads: int) -> str:
    return f"v{version}, {threads} threads"


def _title(title: str, order: str) -> str:
    return f"{title}, {_TITLES[order]}"


def _heat(operator: Operator, title: str, unit: str, order: str, versions: dict[int, int], threads: Sequence[int],
          values: dict[tuple[int, int], float | None], lines: Sequence[dict] = ()) -> dict:
    """A record of kind "heat". The article took consecutive elements; the other order marks its numbers alone."""
    mark = {"label": "the article's choice" if order == "consecutive" else "the article's numbers, in this order",
            "x": operator.reference.ARTICLE["elements"], "y": operator.reference.ARTICLE["threads"]}
    return {"kind": "heat", "title": title, "unit": unit,
            "x": {"label": "elements a thread", "values": list(versions)},
            "y": {"label": "threads a block", "values": list(threads)},
            "cells": [[values[version, t] for version in versions.values()] for t in threads],
            "marks": [mark] if mark["x"] in versions and mark["y"] in threads else [], "lines": list(lines)}


def _chosen(operator: Operator, versions: dict[str, dict[int, int]], threads: Sequence[int], rows: dict) -> list[dict]:
    """The rows of the article's geometry and of the fastest one, with what they are as their names."""
    words = {(version, t): f"{t} threads × {elements}{'' if elements == 1 else f', {order}'}"
             for order, of in versions.items() for elements, version in of.items() for t in threads}
    article = operator.reference.ARTICLE
    chosen = {}
    if article["threads"] in threads and "consecutive" in versions:
        place = (versions["consecutive"][article["elements"]], article["threads"])
        chosen["the article's choice"] = rows[_label(*place)]
    fastest = min(words, key=lambda place: rows[_label(*place)]["median_us"])
    chosen[f"the fastest, {words[fastest]}"] = rows[_label(*fastest)]
    return [{**row, "name": label} for label, row in chosen.items()]


def _possible(operator: Operator, places: list[tuple[int, int]], dtype: str) -> dict[tuple[int, int], float]:
    """The warp slots that the resident blocks fill, in per cent of the SM's."""
    sm = limits()
    one = torch.empty(1, dtype=getattr(torch, dtype), device=operator.device)

    def share(version: int, threads: int) -> float:
        blocks = operator.ops.occupancy(one, version, threads)[0]
        warps = -(-threads // sm["threads_a_warp"])
        return 100 * blocks * warps * sm["threads_a_warp"] / sm["threads_an_sm"]

    return {place: share(*place) for place in places}


def _launch_each_geometry(name: str, n: int, dtype: str, places: list[list[int]]) -> None:
    from labkit.build import load

    operator = load(name)
    x = torch.randn(n, device=operator.device).to(getattr(torch, dtype))
    y = torch.empty_like(x)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for version, threads in places:
        operator.ops.sweep_out(x, y, version, threads)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    _launch_each_geometry(sys.argv[1], int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
