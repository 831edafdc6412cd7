"""`investigate`: faults of synchronisation and their right twins, under the trace, racecheck and synccheck, and on the GPU."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import io
import os

import torch

from labkit import machine, results, sanitizer
from labkit.arguments import named
from labkit.build import load
from labkit.faulty_launches import HANG, Outcome, Run, launched, wrong_orders
from labkit.mutants import Fault, mutant
from labkit.operator import Operator
from labkit.report import keep, take_recorded
from labkit.sanitizer import Report
from labkit.trace_findings import Finding
from labkit.tracing import trace

LAUNCHES = 200
CONSEQUENCES = ("read of what nothing has written yet", "output left unwritten")  # of a missing order, or of an early end
ON_GPU = ("racecheck", "synccheck", "few blocks", "many blocks")


@dataclasses.dataclass
class Seen:
    """What was seen of one kernel; verdicts and outcomes (few blocks, many blocks) are empty where nothing was asked."""

    findings: list[Finding]
    orders: str
    verdicts: dict[str, Report]
    outcomes: list[Outcome]

    def row(self) -> dict:
        on_gpu = [*(str(self.verdicts[tool]) if tool in self.verdicts else None for tool in sanitizer.TOOLS),
                  *map(str, self.outcomes)] if self.outcomes else [None] * len(ON_GPU)
        kinds = list(dict.fromkeys(found.kind for found in self.leading))
        line = f"at {self.leading[0].line.rpartition(':')[2]}: " if kinds else ""
        return {"trace": line + (", ".join(kinds) or "nothing"), "wrong orders": self.orders,
                **dict(zip(ON_GPU, on_gpu, strict=True))}

    @property
    def leading(self) -> list[Finding]:
        """The findings without those that are consequences of others."""
        return [found for found in self.findings if found.kind not in CONSEQUENCES] or self.findings

    @property
    def shared_race(self) -> bool:
        """Whether the trace sees a race in shared memory, the only memory that racecheck looks at."""
        return any(found.kind in ("race", "race in a warp") and "shared array" in found.text for found in self.findings)


def investigate(name: str, faults: dict[str, Fault], title: str) -> list[dict]:
    """Plants each fault, looks at it with every tool, and counts its wrong results on the GPU; and so the kernel as it is.

    name: what the table is called in results/; <name>_twins has the kernels without a fault, <name>_words the first finding of
    each tool in words, <name>_agreement where trace and racecheck agree. faults: {what is wrong: Fault with a shape `many`}.
    title: the tables' head. All run in float32.

    A row a fault: what kinds of fault `trace` finds, the first one at which line; under how many orders of threads the result
    on the CPU is wrong (see `faulty_launches.wrong_orders`; "not run" where the trace had to end the launch); what racecheck
    and synccheck say, "nothing" or the lines that they name; and of LAUNCHES launches each, with inputs of few and of many
    blocks, how many gave a wrong result, or "hangs" where one did not end. The launches of a GPU are made in processes of their
    own (see `wrong_results`). Where compute-sanitizer is not installed its columns are empty. Without a GPU the columns of one
    are those that are recorded for a fault of that name. Returns the rows.
    """
    named("investigate", "faults", faults, "Fault", lambda fault: isinstance(fault, Fault))
    unfit = [what for what, fault in faults.items() if not fault.many]
    if unfit:
        raise ValueError(f"investigate: {unfit[0]!r} has no shape `many`; each fault needs one, which fills a GPU")
    twins = {f"{fault.operator} v{fault.version}, {' × '.join(map(str, fault.size))}": fault for fault in faults.values()}
    if machine.backend() == "cuda" and sanitizer.installed() is None:
        print("compute-sanitizer is not installed (it comes with the CUDA toolkit): racecheck and synccheck are left out.")
    kernels = {**{("fault", what): (fault, True) for what, fault in faults.items()},
               **{("kernel", what): (fault, False) for what, fault in twins.items()}}
    seen = _seen(kernels)
    tables = {name: _table("fault", seen, title), f"{name}_twins": _table("kernel", seen, f"{title}: the kernels as they are"),
              f"{name}_words": results.table_of(f"{title}: in the tools' words", _words(seen))}
    if machine.backend() == "cuda":
        caption = None
        tables[f"{name}_agreement"] = results.table_of(f"{title}: racecheck beside the trace", _agreement(seen, faults))
    else:
        caption = take_recorded(tables, ON_GPU)
    keep(tables, caption)
    for (_, what), one in seen.items():
        if any(outcome.ended == "hangs" for outcome in one.outcomes):
            print(f"{what}: {HANG}")
    rows = tables[name]["rows"]
    results.note("exact", title, f"{sum(row['trace'] != 'nothing' for row in rows)} of {len(rows)} faults found by the trace")
    return rows


def _seen(kernels: dict[tuple, tuple[Fault, bool]]) -> dict[tuple, Seen]:
    on_gpu = machine.backend() == "cuda"
    with contextlib.redirect_stdout(io.StringIO()):  # what it builds
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            built = dict(zip(kernels, pool.map(lambda kernel: _built(*kernel, on_gpu), kernels.values())))
        seen = {key: _on_the_cpu(built[key]["host"], fault) for key, (fault, _) in kernels.items()}
    if not on_gpu:
        return seen
    if sanitizer.installed():
        with concurrent.futures.ThreadPoolExecutor(max(2, (os.cpu_count() or 2) // 2)) as pool:
            asked = {(key, tool): pool.submit(sanitizer.verdict, tool, built[key]["cuda"], fault.size)
                     for key, (fault, _) in kernels.items() for tool in sanitizer.TOOLS}
            for (key, tool), verdict in asked.items():
                seen[key].verdicts[tool] = verdict.result()
    outcomes = launched([(built[key]["cuda"], [Run(fault.size, LAUNCHES), Run(fault.many, LAUNCHES)])  # alone on the GPU
                         for key, (fault, _) in kernels.items()])
    for one, found in zip(seen.values(), outcomes, strict=True):
        one.outcomes = found
    return seen


def _built(fault: Fault, faulty: bool, on_gpu: bool) -> dict[str, Operator]:
    backends = ("host", "trace", *(["cuda"] if on_gpu else []))
    if faulty:
        return {backend: mutant(fault.operator, fault.version, fault.old, fault.new, backend) for backend in backends}
    return {backend: load(fault.operator, fault.version, backend=backend, launch=False) for backend in backends}


def _on_the_cpu(operator: Operator, fault: Fault) -> Seen:
    traced = trace(operator, fault.version, size=fault.size, dtype=torch.float32, show=False)
    orders = "not run" if traced.ended_early else wrong_orders(operator, fault.version, fault.size)
    return Seen(traced.findings, orders, {}, [])


def _table(kind: str, seen: dict[tuple, Seen], title: str) -> dict:
    return results.table_of(title, [{kind: what, **one.row()} for (of, what), one in seen.items() if of == kind])


def _words(seen: dict[tuple, Seen]) -> list[dict]:
    return [{"kernel": what, "trace": str(one.leading[0]) if one.leading else "nothing",
             **{tool: (one.verdicts[tool].first or str(one.verdicts[tool])) if tool in one.verdicts else None
                for tool in sanitizer.TOOLS}}
            for (_, what), one in seen.items()]


def _agreement(seen: dict[tuple, Seen], faults: dict[str, Fault]) -> list[dict]:
    """In how many kernels of a kind `trace` and racecheck see a race in shared memory, where racecheck came to an end."""
    kinds = {"faults with a race in shared memory": [seen["fault", what] for what, fault in faults.items() if fault.race],
             "other faults": [seen["fault", what] for what, fault in faults.items() if not fault.race],
             "kernels without a fault": [one for (of, _), one in seen.items() if of == "kernel"]}
    rows = []
    for kind, members in kinds.items():
        asked = [one for one in members if "racecheck" in one.verdicts and not one.verdicts["racecheck"].ended]
        rows.append({"kernels": kind, "there are": len(members), "racecheck ended in": len(asked),
                     "trace sees a race": sum(one.shared_race for one in asked),
                     "racecheck sees one": sum(one.verdicts["racecheck"].findings > 0 for one in asked)})
    return rows
