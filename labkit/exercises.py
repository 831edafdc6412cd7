"""Exercises: `exercise` shows what one asks and makes the learner's file, `hint` tells one more hint, `solution` the answer.

Each is a folder of exercises/ with an exercise.yml, see `Exercise`, and a solution.cu, from which `python -m labkit exercises`
derives starter.cu. The learner's file is work/NAME.cu, or lies in the folder that LABKIT_WORK names; it is never written over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import json
import os
from pathlib import Path
from typing import Any

import torch
import yaml

from labkit import REPOSITORY, results
from labkit.listing import show_source
from labkit.report import in_notebook

FOLDER = REPOSITORY / "exercises"
CHECKS = ("builds", "ends", "bounds", "barriers", "races", "written", "values", "gradient", "stream", "reads",
          "writes", "accesses", "requests", "conflicts", "wavefronts", "nvcc", "time")
LIMITS = ("reads", "writes", "accesses", "requests", "conflicts", "wavefronts", "time")


class ExerciseError(Exception):
    """An exercise.yml that cannot be; the text names the file and what is wrong in it."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch that an exercise is tried with: a mode of the operator, the shape of its inputs, their type."""

    mode: str
    size: tuple[int, ...]
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A plausible wrong answer: the solution with `change` made, {old: new}, which has to fail at the check `fails`."""

    what: str
    change: dict[str, str]
    fails: str


@dataclasses.dataclass(frozen=True)
class Exercise:
    """What an exercise.yml says.

    lab: whose end it stands at. title, task: Markdown. operator: the folder of kernels/ whose launcher's header, binding and
    reference it takes; the learner's file stands in the place of its .cu, and a reference.py of the exercise in that of its
    reference, which may also have a function `given` (see grading). launches: what is run on the CPU, in this order. numbers:
    what the first elements of each input are that is no gradient, such as 0 and inf; the others are drawn. limits: {check:
    the most there may be}, counted in the last launch: "reads" and "writes" in sectors a request of global memory, "accesses"
    in those of threads in all, to which a branch adds none, "requests" in those of warps in all, "conflicts" and "wavefronts"
    in those of shared memory in all, an atomic counting as one a lane; "time" is the least share of a copy's speed, on a GPU
    and at the shape `timed`. needs: {check: {"code": a regular expression, "words": what is said without it}}, for what a
    check asks and no trace shows. hints: from the first to the last. ideas: {check: what to think of where it fails}. wrong:
    answers that have to fail.
    """

    name: str
    lab: str
    title: str
    task: str
    operator: str
    launches: tuple[Launch, ...]
    numbers: tuple[float, ...]
    limits: dict[str, float]
    timed: tuple[int, ...] | None
    needs: dict[str, dict[str, str]]
    hints: tuple[str, ...]
    ideas: dict[str, str]
    wrong: tuple[Wrong, ...]

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def solution(self) -> Path:
        return self.folder / "solution.cu"

    @property
    def starter(self) -> Path:
        return self.folder / "starter.cu"

    @property
    def file(self) -> Path:
        """The learner's."""
        return workplace() / f"{self.name}.cu"


def workplace() -> Path:
    """The folder of the learner's files."""
    return Path(os.environ.get("LABKIT_WORK") or REPOSITORY / "work").expanduser()


def names(lab: str | None = None) -> list[str]:
    """All exercises, or those of a lab such as "08_sync_pitfalls", in the order of the labs and of `order` in each."""
    found = [(read(path.parent.name).lab, _said(path).get("order", 0), path.parent.name)
             for path in FOLDER.glob("*/exercise.yml")]
    return [name for where, _, name in sorted(found) if lab in (None, where)]


def read(name: str) -> Exercise:
    """The exercise of this name. LookupError where there is none, ExerciseError where its file cannot be read."""
    path = FOLDER / str(name) / "exercise.yml"
    if not path.is_file():
        known = sorted(each.parent.name for each in FOLDER.glob("*/exercise.yml"))
        near = "".join(f"; did you mean {each!r}?" for each in difflib.get_close_matches(str(name), known, 1))
        raise LookupError(f"there is no exercise {name!r}{near or '; there are ' + ', '.join(known)}")
    said = _said(path)
    where = f"exercises/{name}/exercise.yml"
    needed = {"lab", "title", "task", "operator", "sizes", "hints", "ideas", "wrong"}
    optional = {"order", "modes", "dtypes", "numbers", "limits", "timed", "needs"}
    if absent := needed - set(said):
        raise ExerciseError(f"{where} lacks {', '.join(sorted(absent))}")
    if strange := set(said) - needed - optional:
        raise ExerciseError(f"{where} has {', '.join(sorted(strange))}, which nothing reads")
    limits, needs, ideas = said.get("limits", {}), said.get("needs", {}), said["ideas"]
    wrong = tuple(Wrong(**each) for each in said["wrong"])
    for what, check in [*(("limits", key) for key in limits), *(("needs", key) for key in needs),
                        *(("ideas", key) for key in ideas), *(("wrong", each.fails) for each in wrong)]:
        if check not in (LIMITS if what == "limits" else CHECKS):
            raise ExerciseError(f"{where}: {what} names {check!r}, which is none of {', '.join(CHECKS)}")
    launches = tuple(Launch(mode, tuple(size), getattr(torch, dtype)) for mode in said.get("modes", ["forward"])
                     for dtype in said.get("dtypes", ["float32"]) for size in said["sizes"])
    return Exercise(name, said["lab"], said["title"], said["task"], said["operator"], launches,
                    tuple(map(float, said.get("numbers", ()))), limits, tuple(said["timed"]) if "timed" in said else None,
                    needs, tuple(said["hints"]), ideas, wrong)


def exercise(name: str) -> None:
    """Says where the learner's file is, and makes it from the starter where it is not there yet; never over an older one.

    Outside of a notebook it also prints the task, which stands before the call in a lab.
    """
    asked = read(name)
    begun = asked.file.exists()
    if not begun:
        asked.file.parent.mkdir(parents=True, exist_ok=True)
        with asked.file.open("x", encoding="utf-8") as new:  # and not over what an editor has just saved there
            new.write(asked.starter.read_text(encoding="utf-8"))
    place = os.path.relpath(asked.file)
    file = f"Your file: [{place}]({place})" + (", as you left it." if begun else ", new. Delete it to begin anew.")
    after = f'Then `labkit.grade("{name}")`. There are {len(asked.hints)} hints: `labkit.hint("{name}")`.'
    task = "" if in_notebook() else f"{asked.title}. {asked.task.strip()}\n\n"
    show_source(f"{task}{file} {after}", None)


def hint(name: str) -> None:
    """Prints the next hint, and those before it; which is the next is kept beside the learner's files."""
    asked, kept = read(name), workplace() / "hints.json"
    told = _hints_told(kept)
    told[name] = min(told.get(name, 0) + 1, len(asked.hints))
    kept.parent.mkdir(parents=True, exist_ok=True)
    results.replace(kept, json.dumps(told))
    for number, text in enumerate(asked.hints[:told[name]], 1):
        print(f"Hint {number} of {len(asked.hints)}: {text}")
    if told[name] == len(asked.hints):
        print(f'That was the last. The answer: labkit.solution("{name}")')


def _hints_told(kept: Path) -> dict[str, int]:
    """{exercise: how many hints}; what cannot be read counts as none."""
    with contextlib.suppress(OSError, ValueError):
        told = json.loads(kept.read_text(encoding="utf-8"))
        if isinstance(told, dict):
            return {name: number for name, number in told.items() if isinstance(number, int)}
    return {}


def solution(name: str) -> None:
    """Shows the solution, highlighted where a notebook can."""
    show_source(read(name).solution.read_text(encoding="utf-8"), "cpp")


def _said(path: Path) -> dict[str, Any]:
    try:
        said = _parsed(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ExerciseError(f"exercises/{path.parent.name}/exercise.yml is not valid YAML: {error}") from error
    if not isinstance(said, dict):
        raise ExerciseError(f"exercises/{path.parent.name}/exercise.yml has to hold a mapping, not {said!r}")
    return said


_parsed = functools.lru_cache(None)(yaml.safe_load)  # an exercise is read for each of its calls
