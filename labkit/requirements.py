"""What requirements.txt asks for, and what of it this Python lacks.

It needs packaging, which every kernel of Jupyter's brings; so whoever must run before anything is installed imports it late.
"""

from __future__ import annotations

import importlib.metadata

from packaging.requirements import Requirement

from labkit import REPOSITORY

# They run the labs, test them, print the book or teach it; whoever runs a lab in a notebook does without.
NOT_FOR_LABS = {"nbformat", "nbclient", "ipykernel", "jupyterlab", "jupyter-book", "sphinx-mathjax-offline", "pytest",
                "pytest-xdist", "hypothesis", "playwright", "tomli"}


def asked() -> list[Requirement]:
    """What requirements.txt asks for on this system, in its order; no CuPy where there is one for another CUDA."""
    lines = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line.split("#")[0]) for line in lines if line.split("#")[0].strip()]
    here = [wanted for wanted in found if wanted.marker is None or wanted.marker.evaluate()]
    # All builds of CuPy bring the same module: one beside another breaks both.
    other = any(map(installed, {"cupy", "cupy-cuda12x", "cupy-cuda13x"} - {wanted.name for wanted in here}))
    return [wanted for wanted in here if not (other and wanted.name.startswith("cupy"))]


def installed(name: str) -> str | None:
    """The version of a package in this Python; None where it is missing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def met(wanted: Requirement) -> bool:
    """Whether the package is here in a version that fits."""
    have = installed(wanted.name)
    return have is not None and wanted.specifier.contains(have, prereleases=True)
