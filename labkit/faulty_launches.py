"""`wrong_results`: how often a faulty kernel gives a wrong result; and the launches of faulty kernels, in a process of their own.

    python -m labkit.faulty_launches SPEC    makes the launches that SPEC, JSON of what `launched` is given, asks for, and
                                             prints what came of them as JSON

A faulty kernel may hang, or leave the GPU unusable for the process that launched it. Here that is another process, which
watches its launches and ends itself where one does not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Sequence

import torch

from labkit import machine, results
from labkit.build import load
from labkit.environment import in_a_new_process
from labkit.launching import launch_of
from labkit.mutants import Fault, mutant, orders_that_differ
from labkit.operator import Operator, kernels_of
from labkit.report import keep, show_recorded

PATIENCE = 5.0  # seconds for a launch; those here take a millisecond at most
PATIENCE_SANITIZED = 60.0
LIMIT = 240  # seconds for a process
LARGEST = 8  # inputs are whole numbers up to it, so that sums are exact in any order


@dataclasses.dataclass(frozen=True)
class Run:
    """Launches to make: with an input of this shape, how often, and whether each gets the same numbers again."""

    size: tuple[int, ...]
    launches: int
    same_input: bool = False


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a `Run`: launches that ended, those with a wrong element, the share of wrong elements over all of them.

    ended: None, "hangs" where a launch did not end, or "fails: ..." with CUDA's words.
    """

    launches: int
    wrong: int
    elements: float
    ended: str | None = None

    def __str__(self) -> str:
        return self.ended or f"{self.wrong} of {self.launches}"


NOT_RUN = Outcome(0, 0, 0.0, "not run")


def wrong_results(name: str, fault: Fault, sizes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]], title: str,
                  launches: int = 1000) -> list[dict]:
    """Launches a faulty kernel again and again on a GPU and counts the wrong results.

    name: what the table is called in results/. fault: whose own size is not used. sizes: {row: (the shape for few blocks, that
    for many)}, float32. title: the table's head. launches: of each kind.

    A row a pair of sizes: under how many of 7 orders of threads the result on the CPU differs; how many launches of few blocks
    gave a wrong result where every launch had the same input, and where each had its own; the same of many blocks, each
    with its own; and which share of all elements those got wrong. Inputs are whole numbers, so that a right
    sum is exact in any order. The GPU is idle before each launch. A launch that does not end is ended with its process, after
    five seconds, and told as "hangs". Without a GPU the recorded table is shown, and [] returned.
    """
    if not sizes:
        raise ValueError("wrong_results: sizes is empty; it has to name at least one pair of shapes")
    if machine.backend() != "cuda":
        return show_recorded([name], title)
    with contextlib.redirect_stdout(sys.stderr):
        broken, on_gpu = (mutant(fault.operator, fault.version, fault.old, fault.new, backend) for backend in ("host", "cuda"))
    rows = []
    for label, (few, many) in sizes.items():
        again, fresh, crowd = launched(on_gpu, [Run(few, launches, same_input=True), Run(few, launches), Run(many, launches)])
        rows.append({"size": label, "orders that differ": orders_that_differ(broken, fault.version, few),
                     "wrong, same input": str(again), "wrong, new input": str(fresh), "wrong, many blocks": str(crowd),
                     "of their elements, %": round(100 * crowd.elements, 3)})
    keep({name: results.table_of(title, rows)})
    results.note("measured", title, "; ".join(f"{row['size']}: {row['wrong, many blocks']}" for row in rows))
    return rows


def launched(operator: Operator, runs: Sequence[Run], limit: float = LIMIT) -> list[Outcome]:
    """Makes the runs of an operator that holds one version, in a process of their own; an `Outcome` for each.

    After one that hangs or fails the rest is not run. limit: seconds for all of it. RuntimeError where the process fails.
    """
    try:
        told = in_a_new_process("labkit.faulty_launches", specification(operator, runs), timeout=limit)
    except subprocess.TimeoutExpired:
        told = [dataclasses.asdict(dataclasses.replace(NOT_RUN, ended="hangs"))]
    outcomes = [Outcome(**one) for one in told]
    return outcomes + [NOT_RUN] * (len(runs) - len(outcomes))


def specification(operator: Operator, runs: Sequence[Run], sanitized: bool = False) -> str:
    """What `python -m labkit.faulty_launches` is given. sanitized: under compute-sanitizer, where all is slower, and where no
    kernel but the operator's own should run.
    """
    return json.dumps({"kernels": str(operator.source.parents[1]), "operator": operator.name, "version": operator.latest,
                       "backend": operator.backend, "sanitized": sanitized, "runs": [dataclasses.asdict(run) for run in runs]})


# -- the child ----------------------------------------------------------------------------------------------

def _made(spec: dict) -> list[dict]:
    with kernels_of(Path(spec["kernels"])):
        operator = load(spec["operator"], spec["version"], backend=spec["backend"], launch=False)
    found = []
    for run in spec["runs"]:
        found.append(_launches(operator, Run(**{**run, "size": tuple(run["size"])}), spec["sanitized"]))
        if found[-1].ended:
            break
    return [dataclasses.asdict(outcome) for outcome in found]


def _launches(operator: Operator, run: Run, sanitized: bool) -> Outcome:
    mode, (_, _, function) = next(iter(operator.reference.MODES.items()))
    beside = torch.device("cpu") if sanitized else operator.device  # where numbers are drawn and compared
    generator = torch.Generator(beside).manual_seed(8)
    wrong = wrong_elements = elements = 0
    for turn in range(run.launches):
        if turn == 0 or not run.same_input:
            x = torch.randint(-LARGEST, LARGEST + 1, run.size, generator=generator, device=beside).float()
            right = function(x.double())
            launch = launch_of(operator, mode, operator.latest, [x.to(operator.device)])
        y = [torch.full(t.shape, torch.nan, device=beside).to(operator.device) for t in right]
        try:
            if not _ends(lambda: launch(launch.inputs, y), operator.device, PATIENCE_SANITIZED if sanitized else PATIENCE):
                return Outcome(turn, wrong, wrong_elements / max(elements, 1), "hangs")
        except RuntimeError as error:
            return Outcome(turn, wrong, wrong_elements / max(elements, 1), f"fails: {str(error).splitlines()[0]}")
        differ = sum(int((got.to(beside) != want).sum()) for got, want in zip(y, right, strict=True))
        wrong, wrong_elements, elements = wrong + bool(differ), wrong_elements + differ, elements + sum(t.numel() for t in y)
    return Outcome(run.launches, wrong, wrong_elements / max(elements, 1))


def _ends(launch, device: torch.device, patience: float) -> bool:
    """Launches on an idle GPU and waits; False where the launch has not ended after `patience` seconds."""
    if device.type != "cuda":
        launch()
        return True
    torch.cuda.synchronize()
    launch()
    done = torch.cuda.Event()
    done.record()
    until = time.monotonic() + patience
    while not done.query():
        if time.monotonic() > until:
            return False
        time.sleep(1e-4)
    return True


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        _told = _made(json.loads(sys.argv[1]))
    print(json.dumps(_told), flush=True)
    if _told[-1]["ended"]:
        os._exit(0)  # an ordinary end would wait for the launch that hangs
