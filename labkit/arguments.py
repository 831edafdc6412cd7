"""Arguments that cannot be: told before anything is done, with their name, the value seen and what it has to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Iterable


def named(call: str, argument: str, given: Any, kind: str = "function", fits: Callable[[Any], bool] = callable) -> None:
    """Holds that `given` is {label: what fits}, with at least one; else ValueError for none, TypeError for anything else."""
    if given == {}:
        raise ValueError(f"{call}: {argument} is empty; it has to name at least one {kind}")
    if not isinstance(given, dict):
        raise TypeError(f"{call}: {argument} is {given!r}; it has to be a dict, {{label: {kind}}}")
    for label, one in given.items():
        if not fits(one):
            raise TypeError(f"{call}: {argument}[{label!r}] is {one!r}; it has to be a {kind}")


def several(call: str, argument: str, given: Any) -> list:
    """`given` as a list; TypeError for a single text or path, or what cannot be one, ValueError for none."""
    if isinstance(given, (str, bytes, Path)) or not isinstance(given, Iterable):
        raise TypeError(f"{call}: {argument} is {given!r}; it has to be a list, also of one")
    if not (given := list(given)):
        raise ValueError(f"{call}: {argument} is empty; it has to hold at least one")
    return given


def loaded(call: str, argument: str, given: Any) -> None:
    """TypeError unless `given` is an operator."""
    if not hasattr(given, "name"):
        raise TypeError(f"{call}: {argument} is {given!r}; it has to be what labkit.load returns")


def count(call: str, argument: str, given: Any, least: int = 0) -> None:
    """ValueError unless `given` is a whole number, and at least `least`."""
    if type(given) is not int or given < least:
        raise ValueError(f"{call}: {argument} is {given!r}; it has to be a whole number, at least {least}")
