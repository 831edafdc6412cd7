"""What the first cell of a lab runs where the notebook lies alone, as on Colab: the rest of a set-up, in its kernel's Python.

labkit/first_cell.py has the cell itself, which has fetched this repository by then. What is installed already stays as it is,
but for a package that the labs want in another version and that this kernel has not imported; torch and numpy always stay.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from labkit import REPOSITORY, diagnosis, machine, requirements
from labkit.environment import importable
from labkit.pip import SetupError, pip_install

NEVER_CHANGED = "torch", "numpy"
ATTACH = "To attach one: Runtime > Change runtime type > T4 GPU. That starts another machine, so do it now."


def prepare() -> None:
    """Say whether there is a GPU, install what the labs need and this Python lacks, go to labs/, and say what else is wrong.

    Afterwards a notebook finds what it would find in labs/: the working folder, the modules there, and labkit, in the processes
    too that it starts. A second call installs nothing.

    Raises SetupError, whose text says what to do; labkit then counts as not imported, so that the cell tries again.
    """
    if not machine.driver():  # first: with a GPU, all begins anew
        attach = ATTACH if "google.colab" in sys.modules else "The labs measure where there is one."
        print(f"No GPU is attached: kernels run on the CPU, and times are recorded ones. {attach}", flush=True)
    try:
        _install()
    except BaseException:
        sys.path.remove(str(REPOSITORY))
        for name in [name for name in sys.modules if name.partition(".")[0] == "labkit"]:
            del sys.modules[name]
        raise
    os.chdir(REPOSITORY / "labs")
    sys.path.insert(0, str(REPOSITORY / "labs"))
    os.environ.update(importable(os.environ))
    for found in (diagnosis.compiler(), diagnosis.gpu(), diagnosis.nvcc()):
        if found.state != "ok":
            print(f"{found.what}: {found.seen}. To mend it: {found.advice}.")
        elif found.what == "GPU" and machine.driver():
            print(f"GPU: {found.seen}")


def _install() -> None:
    wanted = [one for one in requirements.asked() if one.name not in requirements.NOT_FOR_LABS]
    unmet = [one for one in wanted if not requirements.met(one)]
    fixed = [one for one in unmet if one.name in NEVER_CHANGED and requirements.installed(one.name)]
    for one in fixed:
        have = requirements.installed(one.name)
        if not _newer(one, have):
            raise SetupError(f"{one.name} {have} is installed, the labs need {one.name}{one.specifier}, and this cell never "
                             f"changes {one.name}. On Colab, choose another runtime version under Runtime > Change runtime "
                             "type; elsewhere, use make lab, which makes an environment of its own.")
        print(f"{one.name} {have} is newer than what the labs were tried with, {one.specifier}, and stays. Where a cell fails, "
              "choose another runtime version under Runtime > Change runtime type.")
    imported = _imported() if unmet else set()
    used = [one for one in unmet if one.name in imported and one not in fixed]
    for one in used:
        print(f"{one.name} {requirements.installed(one.name)} is in use and stays; the labs were tried with {one.specifier}")
    staying = fixed + used
    if not (missing := [one for one in unmet if one not in staying]):
        return
    print(f"Installing {', '.join(one.name for one in missing)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "constraints.txt"
        kept.write_text("\n".join(_pins({one.name for one in missing})), encoding="utf-8")
        # What is met is named too, so that pip heeds what that depends on.
        pip_install(*(str(one) for one in wanted if one not in staying), "--constraint", str(kept),
                    python=Path(sys.executable), folder=REPOSITORY, log=REPOSITORY / "build" / "setup.log")
    importlib.invalidate_caches()


def _newer(wanted: Requirement, have: str) -> bool:
    """Whether a version misses only an upper end: Colab's packages move on, and what is newer than the tried may well do."""
    return all(each.contains(have, prereleases=True) for each in wanted.specifier if each.operator not in ("<", "<="))


def _imported() -> set[str]:
    """The names of the packages that this process has imported a module of."""
    packages, modules = importlib.metadata.packages_distributions(), {name.partition(".")[0] for name in sys.modules}
    return {canonicalize_name(package) for module in modules for package in packages.get(module, ())}


def _pins(renewed: set[str]) -> list[str]:
    """A constraint of pip's for each package that is installed, but for those to be renewed: what is here stays as it is."""
    pins = set()
    for package in importlib.metadata.distributions():
        try:
            if package.name and canonicalize_name(package.name) not in renewed:
                pins.add(f"{package.name}=={Version(package.version)}")
        except (InvalidVersion, TypeError):
            pass  # half-removed, or older than the rules for versions: pip would stop at its line
    return sorted(pins)
