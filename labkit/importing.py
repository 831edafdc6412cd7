"""Whether torch can be imported, and what PYTHONPATH puts before the packages of this Python."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import shlex
import sys
import threading
from pathlib import Path

from labkit import REPOSITORY

_one_at_a_time = threading.Lock()


def torch_error() -> str | None:
    """What `import torch` ends in, as one line; None where it works, or torch is not there."""
    if importlib.util.find_spec("torch") is None:
        return None
    with _one_at_a_time:
        return _torch_error()


@functools.cache  # a second try, over what the first has left, may end the process
def _torch_error() -> str | None:
    try:
        import torch  # noqa: F401
    except Exception as error:  # an import runs whatever there is
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None


def torch_again() -> str:
    """What to do about a torch that cannot be imported."""
    if from_pythonpath("torch"):
        return "unset PYTHONPATH, which brings this torch"
    if Path(sys.prefix) == REPOSITORY / ".venv":
        return "set up anew: python3 -m labkit clean --all, then python3 -m labkit setup"
    version = importlib.metadata.version("torch").partition("+")[0]
    return f"install it again: {shlex.quote(sys.executable)} -m pip install --force-reinstall torch=={version}"


def from_pythonpath(package: str) -> bool:
    """Whether it is PYTHONPATH that brings a package, by its own name or as a module of that name."""
    folders = {Path(folder).resolve() for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder}
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    places = [Path(spec.origin).parents[1 if spec.submodule_search_locations else 0]] if spec and spec.origin else []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        places.append(Path(importlib.metadata.distribution(package).locate_file("")))
    return any(place.resolve() in folders for place in places)
