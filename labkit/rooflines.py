"""`roofline`: the rate of arithmetic that kernels reach, over their operations for each byte, under what the GPU allows."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from pathlib import Path
from typing import Iterable, Sequence

from labkit import machine, results
from labkit.ceilings import copy_gbps, gflops, tensor_gflops
from labkit.gpu_counts import Case, Rival, program, validate
from labkit.limiting import BYTES, TIME
from labkit.ncu_reports import Launch, NotRead, read
from labkit.profiling import NotCounted, export
from labkit.report import keep, show_recorded
from labkit.without_counters import median_us

# {type: {the hardware's count of instructions: the operations of one}}. An instruction on 16-bit numbers works on two.
_OPERATIONS = {"float32": {"fadd": 1, "fmul": 1, "ffma": 2}, "float64": {"dadd": 1, "dmul": 1, "dfma": 2},
               "16 bits": {"hadd": 2, "hmul": 2, "hfma": 4}}
_COUNT = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
METRICS = (TIME, BYTES, *(_COUNT.format(word) for words in _OPERATIONS.values() for word in words))
SIXTEEN = ("float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Point:
    """What a case did in one call. seconds: its time. moved: bytes. operations: on numbers of the type `dtype`, mostly."""

    label: str
    seconds: float
    moved: float
    operations: float
    dtype: str


def roofline(name: str, cases: Sequence[Case | Rival], title: str, operations: dict[str, float] | None = None) -> list[dict]:
    """Places each case under the ceilings of this GPU; shows and keeps the tables and the figure.

    name: what the table of cases is called in results/; <name>_ceilings has the ceilings, <name>_figure both on logarithmic
    axes. cases: as for `what_limits`. title: the tables' head. operations: {label of a case: operations an element of one
    input}, for where the hardware may not count them.

    Nsight Compute counts a case's operations (additions and multiplications of floating-point numbers; a fused one is two),
    the bytes that went to and from the GPU's memory, and its time. A special function, such as the exponential, is
    no operation in these counts, though it takes longer than one; nor is what tensor cores do.

    A row a case: operations for each byte; the rate reached and the roof at that intensity, in GFLOP/s, which is a copy's
    bytes a second times the intensity or the rate of the type's multiply-adds, whichever is lower; the share of the roof; and
    which of the two it is. A case without operations, such as a copy, has no place in the figure. Where counters are refused
    and `operations` is given, bytes are those that must move and times are CUDA events'; the title says so. Else, and without
    a GPU, the recorded tables are shown and [] returned. Raises ValueError for cases that no operator has, and for
    `operations` that name none of them.
    """
    validate("roofline", cases, (Case, Rival))
    if unknown := set(operations or ()) - {case.label for case in cases}:
        raise ValueError(f"roofline: operations names {sorted(unknown)[0]!r}; the cases are "
                         f"{', '.join(case.label for case in cases)}")
    names = [name, f"{name}_ceilings", f"{name}_figure"]
    if machine.backend() != "cuda":
        return show_recorded(names, title)
    try:
        points = _counted(cases)
    except (NotCounted, NotRead) as error:
        if not operations:
            return show_recorded(names, title, f"{error}. With operations={{label: how many an element}} the rates are "
                                               "measured all the same")
        print(f"{error}.\nOperations are as given, bytes as they must move.")
        points = [_given(case, operations[case.label]) for case in cases if case.label in operations]
        title += ", operations as given"
    return _kept(name, title, points, ceilings([*(case.dtype for case in cases), *(point.dtype for point in points)]))


def ceilings(dtypes: Iterable[str]) -> dict[str, float]:
    """{what: GFLOP/s} of this GPU in these types: float32 always, in which 16-bit numbers are mostly computed."""
    found = {"float32": gflops("float32")}
    for dtype in dict.fromkeys(dtypes):
        if dtype == "bfloat16" and not machine.native_bfloat16():
            continue  # it is computed in float32 there
        found[dtype] = gflops(dtype)
        if dtype in SIXTEEN:
            found[f"tensor cores, {dtype}"] = tensor_gflops(dtype)
    return found


def points_of(cases: Sequence[Case | Rival], launches: Sequence[Launch]) -> list[Point]:
    """What each case did, all its kernels together. NotCounted where a case has no launch, or a launch lacks a count."""
    points = []
    for case in cases:
        own = [launch.values for launch in launches if launch.case == case]
        missing = [metric for values in own for metric in (TIME, BYTES, _COUNT.format("ffma")) if metric not in values]
        if not own or missing:
            raise NotCounted(f"{case.label}: the report has {f'no {missing[0]}' if missing else 'no launch of it'}")
        by_type = {dtype: sum(each * values.get(_COUNT.format(word), 0) for values in own for word, each in words.items())
                   for dtype, words in _OPERATIONS.items()}
        most = max(by_type, key=by_type.get)
        points.append(Point(case.label, sum(values[TIME] for values in own), sum(values[BYTES] for values in own),
                            sum(by_type.values()), _type(most, case.dtype)))
    return points


def _type(most: str, dtype: str) -> str:
    if most != "16 bits":
        return most
    return dtype if dtype in SIXTEEN else "float16"


def _counted(cases: Sequence[Case | Rival]) -> list[Point]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "roofline.ncu-rep"
        export(report, (), METRICS, program(cases))
        return points_of(cases, read(report))


def _given(case: Case | Rival, operations: float) -> Point:
    dtype = "float64" if case.dtype == "float64" else "float32"
    return Point(case.label, median_us(case) / 1e6, case.must_move, operations * math.prod(case.shape), dtype)


def _kept(name: str, title: str, points: Sequence[Point], roofs: dict[str, float]) -> list[dict]:
    gbps = copy_gbps()
    rows = [row_of(point, gbps, roofs) for point in points]
    results.note("measured", title, f"{len(rows)} cases under {len(roofs)} ceilings")
    tables = {name: results.table_of(title, rows), f"{name}_ceilings": results.table_of(f"{title}: the ceilings", [
        {"what": "a copy", "GB/s": round(gbps), "GFLOP/s": None, "operations a byte from which it is the roof": None},
        *({"what": what, "GB/s": None, "GFLOP/s": round(rate),
           "operations a byte from which it is the roof": round(rate / gbps, 1)} for what, rate in roofs.items())])}
    if drawn := [point for point in points if point.operations]:
        tables[f"{name}_figure"] = figure(title, drawn, gbps, roofs)
    keep(tables)
    return rows


def row_of(point: Point, gbps: float, roofs: dict[str, float]) -> dict:
    """A row of the table: a point under the lower of the memory's roof and that of its type's arithmetic."""
    intensity, rate = point.operations / point.moved, point.operations / point.seconds / 1e9
    peak = roofs.get(point.dtype, roofs["float32"])
    roof = min(gbps * intensity, peak)
    return {"launch": point.label, "operations a byte": round(intensity, 3), "GFLOP/s": round(rate, 1),
            "roof, GFLOP/s": round(roof, 1), "of the roof, %": round(100 * rate / roof, 1) if roof else None,
            "roof": "memory" if gbps * intensity < peak else f"arithmetic in {point.dtype}"}


def figure(title: str, points: Sequence[Point], gbps: float, roofs: dict[str, float]) -> dict:
    """Roofs as lines and cases as points, both axes logarithmic, as a "curve" record. points: each with operations."""
    at = [point.operations / point.moved for point in points]
    first = math.floor(math.log2(min(*at, 0.25))) - 1
    last = math.ceil(math.log2(max(*at, *(rate / gbps for rate in roofs.values())))) + 1
    values = sorted({2.0**k for k in range(first, last + 1)} | {rate / gbps for rate in roofs.values()})
    ticks = [2.0**k for k in range(first, last + 1, max(1, (last - first) // 6))]
    return {"kind": "curve", "title": f"{title}: roofline",
            "x": {"label": "operations for each byte of memory", "scale": "log", "ticks": ticks,
                  "values": [round(value, 6) for value in values],
                  "tick_labels": [f"{tick:g}" if tick >= 1 else f"1/{round(1 / tick)}" for tick in ticks]},
            "y": {"label": "GFLOP/s", "scale": "log"},
            "series": {what: [round(min(gbps * value, rate), 3) for value in values]
                       for what, rate in sorted(roofs.items(), key=lambda roof: -roof[1])},
            "points": [{"label": point.label, "x": round(x, 6), "y": round(point.operations / point.seconds / 1e9, 3)}
                       for point, x in zip(points, at)]}
