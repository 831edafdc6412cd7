"""`reuse`: how often a kernel loads what it needs only once, counted by `trace`."""

from __future__ import annotations

from typing import Sequence

from labkit import results
from labkit.gpu_counts import Case, traced, validate
from labkit.report import keep

SECTOR = 32  # bytes


def reuse(name: str, cases: Sequence[Case], title: str) -> list[dict]:
    """Counts the sectors of global memory that each case loads, beside those that its inputs fill; shows and keeps the table.

    name: what the table is called in results/. cases: what to trace; their labels must differ. title: the table's head.

    Returns a row a case: sectors of the inputs, sectors loaded, how many times each, and by how much fewer they are than
    those of the first case of the same operator, in per cent. The counts are of what warps ask of the L1 cache, and exact.
    Raises ValueError as `agreement` does.
    """
    validate("reuse", cases)
    rows, first = [], {}
    for case in cases:
        filled = sum(-(-t.nbytes // SECTOR) for t in case.inputs())
        loaded = traced(case).total("reads").sectors
        before = first.setdefault(case.operator, loaded)
        rows.append({"kernel": case.label, "input": case.size, "sectors of the input": filled, "sectors loaded": loaded,
                     "times each": round(loaded / filled, 3), "fewer than the first, %": round(100 * (1 - loaded / before), 1)})
    for row in rows:
        results.note("exact", f"{title}, {row['kernel']}", f"each sector {row['times each']} times")
    keep({name: results.table_of(title, rows, exact=True)}, results.EXACT)
    return rows
