"""What requirements.txt asks for, and what of it this Python lacks. Needs packaging, which comes with Jupyter and with pip's users."""

from __future__ import annotations

import importlib.metadata

from packaging.requirements import Requirement

from labkit import REPOSITORY

# They run the labs, test them, print the book or teach it; whoever runs a lab in a notebook does without.
NOT_FOR_LABS = {"nbformat", "nbclient", "ipykernel", "jupyterlab", "jupyter-book", "sphinx-mathjax-offline", "pytest",
                "pytest-xdist", "hypothesis", "playwright", "nbgrader", "tomli"}
CUPY = "cupy-cuda12x", "cupy-cuda13x", "cupy"  # each brings the module cupy: one beside another breaks both


def asked() -> list[Requirement]:
    """What requirements.txt asks for on this system, in its order."""
    lines = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line.split("#")[0]) for line in lines if line.split("#")[0].strip()]
    return [wanted for wanted in found if wanted.marker is None or wanted.marker.evaluate()]


def installed(name: str) -> str | None:
    """The version of a package in this Python; None where it is missing. Any build of CuPy counts for the one that is asked for."""
    for one in CUPY if name in CUPY else (name,):
        try:
            return importlib.metadata.version(one)
        except importlib.metadata.PackageNotFoundError:
            pass
    return None


def met(wanted: Requirement) -> bool:
    """Whether the package is here in a version that fits."""
    have = installed(wanted.name)
    return have is not None and wanted.specifier.contains(have, prereleases=True)
