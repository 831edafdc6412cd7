"""What the teaching guide is made of: the plans of workshop/plans.yml by the clock, and all exercises."""

from __future__ import annotations

import datetime
from typing import Any

import yaml

from labkit import REPOSITORY, exercises, results

PLANS = REPOSITORY / "workshop" / "plans.yml"
EXERCISE_MINUTES = 10


class PlanError(Exception):
    """A plan that cannot be; the text names it and what is wrong."""


def plan(name: str) -> dict:
    """A record of kind "table" with a row a step: from when, its minutes, how many of them are talk, what the teacher and the
    room do, the exercises.

    Raises PlanError for a plan that there is not, a step without minutes, one of a chapter in which the room does nothing, and
    exercises that its lab does not have or for which its minutes do not suffice.
    """
    plans = yaml.safe_load(PLANS.read_text(encoding="utf-8"))
    if name not in plans:
        raise PlanError(f"there is no plan {name!r} in workshop/plans.yml; there are {', '.join(plans)}")
    now = datetime.datetime.strptime(plans[name]["begins"], "%H:%M")
    rows = []
    for step in plans[name]["steps"]:
        if type(step.get("minutes")) is not int or step["minutes"] < 1:
            raise PlanError(f"{name}: {step.get('what')!r} has {step.get('minutes')!r} minutes")
        if "chapter" in step and not step.get("room"):
            raise PlanError(f"{name}: {step['what']!r} does not say what the room does")
        quiet, asked = step["minutes"] - step.get("talk", 0), EXERCISE_MINUTES * step.get("exercises", 0)
        if quiet < asked or "chapter" in step and quiet < 1:
            raise PlanError(f"{name}: {step['what']!r} leaves {quiet} minutes beside the talk, and its exercises take {asked}")
        end = now + datetime.timedelta(minutes=step["minutes"])
        rows.append({"from": f"{now:%H:%M}", "minutes": step["minutes"], "of them talk": step.get("talk", "–"),
                     "what": step["what"], "the room": step.get("room", "–"),
                     "chapter": step.get("chapter", "–").partition("_")[0],
                     "exercises": "; ".join(_titles(name, step)) or "–"})
        now = end
    return results.table_of(f"{name.capitalize()}, from {rows[0]['from']} to {now:%H:%M}", rows)


def _titles(name: str, step: dict[str, Any]) -> list[str]:
    wanted = step.get("exercises", 0)
    there = exercises.names(step["chapter"]) if wanted else []
    if wanted > len(there):
        raise PlanError(f"{name}: {step['what']!r} wants {wanted} exercises, and the lab has {len(there)}")
    return [exercises.read(each).title for each in there[:wanted]]


def all_exercises() -> dict:
    """A record of kind "table": every exercise with its lab, its name, and what is graded beside the values."""
    rows = []
    for name in exercises.names():
        asked = exercises.read(name)
        gradient = ["gradient"] if any(launch.mode.startswith("backward") for launch in asked.launches) else []
        rows.append({"lab": asked.lab.partition("_")[0], "exercise": asked.title, "name": name,
                     "graded beside values": ", ".join([*gradient, *asked.limits]) or "–"})
    return results.table_of("The exercises", rows)
