"""`wrong_results`: how often a faulty kernel gives a wrong result; launches of faulty kernels, in a process of their own.

    python -m labkit.faulty_launches SPEC    makes the launches that SPEC, JSON of what `launched` is given, asks for, and
                                             prints what came of them as JSON

A faulty kernel may hang, or leave the GPU unusable for the process that launched it. Here that is another process, which
watches its launches and ends itself where one does not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
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
from labkit.launching import Launch, prepare
from labkit.mutants import Fault, mutant
from labkit.operator import Operator, kernels_of
from labkit.ordering import outputs_in
from labkit.references import exact_outputs, models
from labkit.report import keep, take_recorded

PATIENCE = 5.0  # seconds for a launch; those here take a millisecond at most
PATIENCE_SANITIZED = 20.0
HANG = (f"a launch did not end within {PATIENCE:.0f} seconds. A kernel that runs cannot be called back, so the process that "
        "launched it was ended, and the driver ended the kernel with it. This session goes on.")
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


COLUMNS = ("wrong, same input", "wrong, new input", "wrong, many blocks", "of their elements, %")
NOT_RUN = Outcome(0, 0, 0.0, "not run")


def wrong_results(name: str, fault: Fault, sizes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]], title: str,
                  launches: int = 1000) -> list[dict]:
    """Launches a faulty kernel again and again on a GPU and counts the wrong results.

    name: what the table is called in results/. fault: whose own size is not used. sizes: {row: (the shape for few blocks, that
    for many)}, float32. title: the table's head. launches: of each kind.

    A row a pair of sizes: under how many orders of threads the result on the CPU is wrong (see `wrong_orders`); how many
    launches of few blocks gave a wrong result where every launch had the same input, and where each had its own; the same of
    many blocks, each with its own; and which share of all elements those got wrong. Inputs are whole numbers, so that a right
    sum is exact in any order. The GPU is idle before each launch. A launch that does not end is ended with its process, after
    five seconds, and told as "hangs". Without a GPU its columns are the recorded ones. Returns the rows.
    """
    if not sizes:
        raise ValueError("wrong_results: sizes is empty; it has to name at least one pair of shapes")
    on_gpu = machine.backend() == "cuda"
    with contextlib.redirect_stdout(io.StringIO()):  # what it builds
        broken = mutant(fault.operator, fault.version, fault.old, fault.new)
        built = mutant(fault.operator, fault.version, fault.old, fault.new, "cuda") if on_gpu else None
    counts = [dict.fromkeys(COLUMNS)] * len(sizes)
    if on_gpu:
        found = launched([(built, [Run(few, launches, same_input=True), Run(few, launches), Run(many, launches)])
                          for few, many in sizes.values()])
        counts = [dict(zip(COLUMNS, [*map(str, outcomes), round(100 * outcomes[-1].elements, 3)], strict=True))
                  for outcomes in found]
    rows = [{"size": label, "wrong orders": wrong_orders(broken, fault.version, few), **seen}
            for (label, (few, _)), seen in zip(sizes.items(), counts, strict=True)]
    tables = {name: results.table_of(title, rows)}
    keep(tables, None if on_gpu else take_recorded(tables, COLUMNS))
    if any("hangs" in row.values() for row in rows):
        print(f"{title}: {HANG}")
    told = [row["wrong, many blocks"] if on_gpu else row["wrong orders"] for row in rows]
    results.note("measured" if on_gpu else "exact", title, "; ".join(told))
    return rows


def wrong_orders(operator: Operator | str, version: int, size: tuple[int, ...]) -> str:
    """Under how many orders of threads on the CPU a result is wrong: "7 of 8"; "fails" where one fails.

    They are forward, reverse and the six shuffles of `schedules`. That one needs no reference, and sees only results that
    differ; here the result is compared with the reference, in float32 and with whole numbers.
    """
    launch = prepare(operator, "host", version, None, None, None, [_whole_numbers(size, 0, torch.device("cpu"))])
    right = exact_outputs(launch.operator.reference, launch.mode, launch.inputs)
    orders = ("forward", "reverse", *map(str, range(1, 7)))
    try:
        wrong = [any((got != want).any() for got, want in zip(outputs, right, strict=True))
                 for outputs in outputs_in(orders, launch)]
    except RuntimeError:
        return "fails"
    return f"{sum(wrong)} of {len(orders)}"


def _whole_numbers(size: tuple[int, ...], seed: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randint(-LARGEST, LARGEST + 1, size, generator=generator, device=device).float()


def launched(asked: Sequence[tuple[Operator, Sequence[Run]]], limit: float = LIMIT) -> list[list[Outcome]]:
    """Makes runs of operators that each hold one version, in processes of their own; for each operator its outcomes.

    Where a run hangs or fails, the operator's others are not run, and the next operator has a new process. limit: seconds
    for an operator. RuntimeError where the process fails.
    """
    outcomes: list[list[Outcome]] = []
    at_once = len(asked)
    while len(outcomes) < len(asked):
        part = asked[len(outcomes):][:at_once]
        try:
            told = in_a_new_process("labkit.faulty_launches", specification(part), timeout=limit * len(part))
        except subprocess.TimeoutExpired:
            if len(part) > 1:  # which of them it was is not known
                at_once = 1
                continue
            told = [[dataclasses.asdict(dataclasses.replace(NOT_RUN, ended="hangs"))]]
        for (_, runs), found in zip(part, told):
            outcomes.append([Outcome(**one) for one in found] + [NOT_RUN] * (len(runs) - len(found)))
    return outcomes


def specification(asked: Sequence[tuple[Operator, Sequence[Run]]], sanitized: bool = False) -> str:
    """What `python -m labkit.faulty_launches` is given. sanitized: under compute-sanitizer, where all is slower, and where no
    kernel but the operator's own should run.
    """
    return json.dumps([{"kernels": str(operator.source.parents[1]), "operator": operator.name, "version": operator.latest,
                        "backend": operator.backend, "sanitized": sanitized, "runs": [dataclasses.asdict(run) for run in runs]}
                       for operator, runs in asked])


# -- the child ----------------------------------------------------------------------------------------------

def _made(specs: list[dict]) -> list[list[dict]]:
    """The outcomes of each; it ends with the first one of which a run hangs or fails."""
    found: list[list[dict]] = []
    for spec in specs:
        with kernels_of(Path(spec["kernels"])):
            operator = load(spec["operator"], spec["version"], backend=spec["backend"], launch=False)
        found.append([])
        for run in spec["runs"]:
            outcome = _launches(operator, Run(**{**run, "size": tuple(run["size"])}), spec["sanitized"])
            found[-1].append(dataclasses.asdict(outcome))
            if outcome.ended:
                return found
    return found


def _launches(operator: Operator, run: Run, sanitized: bool) -> Outcome:
    mode, (_, _, function) = next(iter(operator.reference.MODES.items()))
    beside = torch.device("cpu") if sanitized else operator.device  # where numbers are drawn and compared
    wrong = wrong_elements = elements = 0
    for turn in range(run.launches):
        if turn == 0 or not run.same_input:
            x = _whole_numbers(run.size, turn, beside)
            right = function(x.double())
            inputs = [x.to(operator.device)]
            outputs = models(operator.reference, mode, inputs, [t.shape for t in right])
            launch = Launch(operator, mode, operator.latest, inputs, outputs)
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
    if _told[-1][-1]["ended"]:
        os._exit(0)  # an ordinary end would wait for the launch that hangs
