"""`same_losses` and `survives`: whether many processes train as one does, and whether a killed run goes on where it was."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from labkit import machine, results
from labkit.output_errors import WrongResult
from labkit.report import here, keep
from labkit.torchrun import Run, losses, started

STEPS = 80  # of a tiny model: enough to kill a run twice in the middle
SAVE_EVERY = 10
# In float64 the order of additions is all that differs. In bfloat16 each product is rounded to 8 bits, and the losses are means
# of some hundred predictions. What is rounded otherwise grows from step to step, until two right runs differ as any two do: so
# only the first steps are held against each other.
TOLERANCES = {"float64": 1e-12, "bfloat16": 2**-7}
COMPARED = {"float64": STEPS, "bfloat16": 20}  # steps
ON_THE_CPU = "On the CPU, in float64"
CORES = 4  # that two processes with their torchrun keep busy


def same_losses(name: str, program: Path, title: str, processes: int = 2, steps: int = STEPS) -> dict[str, list[float]]:
    """Trains a tiny model alone, and shared out by DDP and by FSDP2: on the CPU by gloo, on this machine's GPUs by NCCL too.

    name: what the table is called in results/. program: takes --device, --way, --precision, --steps, --folder, --tiny, and
    writes the loss of the whole batch at each step, as labs/train.py does. processes: how many share; NCCL is left out where
    there are fewer GPUs. title: the table's head.

    Returns {way: the losses of the runs on the CPU in float64}. Raises labkit.output_errors.WrongResult for a loss of the first
    COMPARED steps that differs from that of one process by more than TOLERANCES allow, relative to it; torchrun.RunFailed where
    a run fails.
    """
    kinds = [("cpu", "float64")]
    if machine.backend() == "cuda" and torch.cuda.device_count() >= processes:
        kinds += [("cuda", "float64"), ("cuda", "bfloat16")]
    runs = {(*kind, way): 1 if way == "plain" else processes for kind in kinds for way in ("plain", "ddp", "fsdp")}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // CORES)) as pool:
        found = dict(zip(runs, pool.map(lambda each: _losses(program, *each[0], each[1], steps, Path(folder)), runs.items())))
    rows = []
    for (device, precision, way), shared in found.items():
        if way == "plain":
            continue
        alone, compared = found[device, precision, "plain"], min(steps, COMPARED[precision])
        apart = [abs(loss - right) / right for loss, right in zip(shared, alone, strict=True)][:compared]
        if not all(each <= TOLERANCES[precision] for each in apart):  # a NaN is not
            raise WrongResult(f"same_losses: {way} on {device} in {precision} differs from one process by {max(apart):.1e}, "
                              f"and {TOLERANCES[precision]:.1e} is allowed: {shared} against {alone}")
        rows.append({"shared by": f"{way}, {processes} processes", "through": "gloo" if device == "cpu" else "NCCL",
                     "precision": precision, "loss at first": round(shared[0], 4),
                     f"after {steps - 1} steps": round(shared[-1], 4), "steps compared": compared,
                     "largest difference": float(f"{max(apart):.1e}"), "allowed": float(f"{TOLERANCES[precision]:.1e}")})
    results.note("check", title, f"{len(rows)} ways to share learn as one process does")
    keep({name: results.table_of(title, rows)}, f"On the CPU; through NCCL: {here()}" if len(kinds) > 1 else ON_THE_CPU)
    return {way: found["cpu", "float64", way] for way in ("plain", "ddp", "fsdp")}


def survives(name: str, program: Path, uninterrupted: list[float], title: str, way: str = "ddp",
             processes: int = 2) -> list[dict]:
    """Kills a run twice, and holds every loss against those of the run that nobody disturbed. On the CPU, in float64.

    First one process dies, and torchrun starts all again; then all die, torchrun too, and the same command is given again.
    SIGKILL both times, between two checkpoints. program: as in `same_losses`, and with --save-every; it goes on from its newest
    checkpoint. uninterrupted: the losses of such a run, a step each.

    Returns a row an event. Raises WrongResult where one bit of a loss differs, RunFailed where the run does not go on.
    """
    steps = len(uninterrupted)
    first, second = steps // 4 + SAVE_EVERY // 2, steps // 2 + SAVE_EVERY // 2
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        arguments = _arguments("cpu", "float64", way, steps, Path(folder)) + ["--save-every", str(SAVE_EVERY)]
        with started(program, processes, arguments, Path(folder), restarts=1) as run:
            reached = _reached(run, first)
            run.workers()[-1].kill()
            run.wait_until(lambda events: _starts(events) == 2, "its second start")
            rows.append(_event("one process is killed; torchrun starts all again", reached, run))
            reached = _reached(run, second, after=1)
            run.kill()
        with started(program, processes, arguments, Path(folder)) as run:
            run.wait_until(lambda events: _starts(events) == 3, "its third start")
            rows.append(_event("all are killed; the same command again", reached, run))
            events = run.finish()
    computed = losses(events)
    wrong = [step for step in range(steps) if any(loss != uninterrupted[step] for loss in computed.get(step, [float("nan")]))]
    rows.append({"what happens": "the end", "step reached": steps - 1, "went on from": None,
                 "steps done twice": sum(len(each) > 1 for each in computed.values()), "losses that differ": len(wrong)})
    anew = [event["start"] for event in events if "start" in event][1:]
    results.note("check", title, f"{len(wrong)} of {steps} losses differ from those of a run that nobody disturbed")
    keep({name: results.table_of(title, rows)}, ON_THE_CPU)
    if 0 in anew:
        raise WrongResult(f"survives: a run went on from step {anew}; at 0 it began anew and took no checkpoint")
    if wrong:
        raise WrongResult(f"survives: the losses of the steps {wrong} differ from those of the uninterrupted run: "
                          f"{[computed.get(step) for step in wrong]} against {[uninterrupted[step] for step in wrong]}")
    return rows


def _arguments(device: str, precision: str, way: str, steps: int, folder: Path) -> list[str]:
    return ["--tiny", "--device", device, "--precision", precision, "--way", way, "--steps", str(steps),
            "--folder", str(folder)]


def _losses(program: Path, device: str, precision: str, way: str, processes: int, steps: int, folder: Path) -> list[float]:
    folder = folder / f"{device} {precision} {way}"
    with started(program, processes, _arguments(device, precision, way, steps, folder), folder) as run:
        computed = losses(run.finish())
    return [computed[step][0] for step in range(steps)]


def _starts(events: list[dict]) -> int:
    return sum("start" in event for event in events)


def _reached(run: Run, step: int, after: int = 0) -> int:
    """Waits until the run has passed `step`, after its start number `after` (from 0); returns the step that it was at then."""
    def passed(events: list[dict]) -> bool:
        return _starts(events) > after and events[-1].get("step", -1) >= step

    run.wait_until(passed, f"step {step}")
    return max(event["step"] for event in run.events() if "step" in event)


def _event(what: str, reached: int, run: Run) -> dict:
    begun = [event["start"] for event in run.events() if "start" in event]
    return {"what happens": what, "step reached": reached, "went on from": begun[-1], "steps done twice": None,
            "losses that differ": None}
