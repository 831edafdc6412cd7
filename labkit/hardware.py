"""`counters`: what the hardware counted while each version of a kernel ran, by Nsight Compute."""

from __future__ import annotations

import math
from typing import Callable, Sequence

from labkit import results
from labkit.arguments import loaded
from labkit.gpu_counts import Case, count
from labkit.operator import Operator
from labkit.profiling import NotCounted
from labkit.report import NO_GPU, keep, show_recorded

_LOADS = "l1tex__t_{}_pipe_lsu_mem_global_op_ld.sum"
# {what: ({key: Nsight Compute's metric}, function of (those counts, elements) -> columns)}
_ABOUT: dict[str, tuple[dict[str, str], Callable[[dict, int], dict]]] = {
    "work": (
        {"instructions": "smsp__inst_executed.sum", "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
         "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
         "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
         "sectors": _LOADS.format("sectors"), "requests": _LOADS.format("requests")},
        lambda counted, elements: {
            "instructions an element": round(32 * counted["instructions"] / elements, 2),
            "issue slots used, %": counted["issue"], "warp slots filled, %": counted["warps"],
            "memory busy, %": counted["memory"], "sectors a load": round(counted["sectors"] / counted["requests"], 2)}),
    "levels": (
        {"l1": _LOADS.format("sectors"), "l2": "lts__t_sectors_srcunit_tex_op_read.sum", "read": "dram__bytes_read.sum",
         "stored": "lts__t_sectors_srcunit_tex_op_write.sum", "written": "dram__bytes_write.sum",
         "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed"},
        lambda counted, elements: {
            "bytes an element loaded from L1": round(32 * counted["l1"] / elements, 2),
            "from L2": round(32 * counted["l2"] / elements, 2), "from memory": round(counted["read"] / elements, 2),
            "stored to L2": round(32 * counted["stored"] / elements, 2), "to memory": round(counted["written"] / elements, 2),
            "memory busy, %": counted["memory"]}),
}


def counters(name: str, operator: Operator, mode: str, shape: int | Sequence[int], dtype: str, title: str,
             about: str = "work") -> list[dict]:
    """Counts what each version of an operator does on the GPU; shows and keeps the table.

    name: what the table is called in results/. mode: one of the operator's modes, such as "forward". shape: of each input,
    or its number of elements. dtype: a torch dtype's name, such as "bfloat16". title: the table's head. about: "work" or
    "levels", the columns.

    Returns a row a version. "work": instructions an element (executed by its thread, memory accesses included); the
    share of issue slots used and of warp slots filled; how busy the memory was; and the 32-byte sectors that a warp's
    load touches. "levels": the bytes that loads asked of the L1 cache, for each element of an input, in whole sectors;
    how many came from the L2 cache and from memory; how many stores sent to the L2 cache, and it to memory; and how
    busy the memory was. Without a GPU, or where Nsight Compute is missing, refused or silent, it says so, shows the
    recorded table and returns []. Raises ValueError for another `about`.
    """
    loaded("counters", "operator", operator)
    if about not in _ABOUT:
        raise ValueError(f'counters: about is {about!r}; it takes "work" or "levels"')
    metrics, columns = _ABOUT[about]
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    elements = math.prod(shape)
    why = NO_GPU
    if operator.backend == "cuda":
        cases = [Case(operator.name, version, shape, dtype, mode) for version in operator.versions]
        try:
            counted = count(metrics, cases)
        except NotCounted as error:
            why = str(error)
        else:
            rows = [{"version": f"v{case.version}", **columns(launch, elements)} for case, launch in zip(cases, counted)]
            results.note("measured", title, f"{len(rows)} versions counted by Nsight Compute")
            keep({name: results.table_of(title, rows)})
            return rows
    return show_recorded([name], title, why)
