"""What this machine has for the labs, what is wrong with it, and the one thing to do about each.

Only the standard library and torch where it is there: it must also run on a machine where the set-up failed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from labkit import REPOSITORY, machine

DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
ENOUGH_DISK_GIB, LEAST_DISK_GIB = 5.0, 0.5
SET_UP = "python3 -m labkit setup"

_sound: set[Path] = set()  # C++ compilers that have worked in this process


@dataclass(frozen=True)
class Finding:
    """One line: `what` was looked at, its `state` ("ok", "warn" or "fail"), what was `seen`, and what to do."""

    what: str
    state: str
    seen: str
    advice: str = ""


def doctor() -> list[Finding]:
    """Look this machine over, print what was found as a table, and return the findings.

    "fail" is what no lab runs without, or what breaks one; "warn" is what some of them lack. Having no GPU is
    neither: the labs then run on the host backend.
    """
    findings = [check() for check in (python, compiler, packages, gpu, nvcc, ninja, disk, build_folder,
                                      nsight_compute, jupyter)]
    _print(findings)
    return findings


def python() -> Finding:
    """Which Python runs this (the command line refuses one older than 3.10)."""
    return Finding("Python", "ok", f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}")


def compiler() -> Finding:
    """The C++ compiler, asked to read a C++20 header."""
    found = machine.find_cxx()
    if found is None:
        if os.environ.get("CXX"):
            return Finding("C++ compiler", "fail", f"CXX={os.environ['CXX']} is not there",
                           "unset CXX, or name one program in it, such as CXX=g++-12")
        return Finding("C++ compiler", "fail", "none (c++ is not on PATH)",
                       "install one: apt install g++, or dnf install gcc-c++")
    seen = f"{(machine.output(found, '--version') or 'no version').splitlines()[0]} at {found}"
    if not _compiles(found):
        return Finding("C++ compiler", "fail", f"{seen}; it does not compile C++20",
                       "install g++ 11 or clang 14, or newer, and name it: CXX=g++-12")
    return Finding("C++ compiler", "ok", seen)


def _compiles(compiler: Path) -> bool:
    """Whether it takes C++20. One that did is not asked again: each build looks, and there are many in one process."""
    if compiler not in _sound:
        try:
            done = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"], capture_output=True, timeout=20,
                                  text=True, input="#include <bit>\nstatic_assert(std::popcount(7u) == 3);\n")
        except (OSError, subprocess.SubprocessError):
            return False
        if done.returncode == 0:
            _sound.add(compiler)
    return compiler in _sound


def packages() -> Finding:
    """torch, and whether what requirements.txt names is here in a fitting version."""
    torch = _version("torch")
    if torch is None:
        return Finding("packages", "fail", f"torch is not in {sys.prefix}", SET_UP)
    from packaging.requirements import Requirement

    unmet = []
    for line in (REPOSITORY / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if line.split("#")[0].strip():
            wanted = Requirement(line.split("#")[0])
            have = _version(wanted.name)
            if (wanted.marker is None or wanted.marker.evaluate()) and (
                    have is None or not wanted.specifier.contains(have, prereleases=True)):
                unmet.append(f"{wanted.name} {have or 'missing'}")
    cuda = machine.versions()["cuda"]
    seen = f"torch {torch}, {'built for CUDA ' + cuda if cuda else 'a build without CUDA'}"
    if unmet:
        return Finding("packages", "warn", f"{seen}; not as requirements.txt asks: {', '.join(unmet)}", SET_UP)
    return Finding("packages", "ok", seen)


def gpu() -> Finding:
    """The GPU that torch sees, or why it does not see the one that is there."""
    seen = machine.gpu() if _version("torch") else None
    driver = machine.driver()
    if seen:
        return Finding("GPU", "ok", f"{seen['name']}, {machine.arch()}, "
                       f"{seen['memory_gib']:.0f} GiB, driver {driver or 'unknown'}")
    if driver is None:
        return Finding("GPU", "ok", "none; the labs run on the host backend and show recorded GPU figures")
    cuda = machine.versions()["cuda"]
    if cuda is None:
        return Finding("GPU", "warn", f"driver {driver}, but torch is a build without CUDA",
                       "install a CUDA build of torch, or use the host backend")
    return Finding("GPU", "warn", f"driver {driver}, but torch (CUDA {cuda}) does not see a GPU",
                   f"update the driver to one for CUDA {cuda}, or use a torch for your driver with --here")


def nvcc() -> Finding:
    """nvcc. Where kernels run on a GPU, its major version must be that of torch's CUDA; else they are compiled to be read."""
    found, version, cuda = machine.find_nvcc(), machine.nvcc_version(), machine.versions()["cuda"]
    has_gpu = bool(machine.gpu()) if _version("torch") else False
    if found is None:
        return Finding("nvcc", "warn", "none, so kernels run on the CPU", SET_UP) if has_gpu else Finding(
            "nvcc", "ok", "none, and no GPU that needs it; labs show recorded machine code")
    seen = f"{version or 'of an unknown version'} at {found}"
    if version is None:
        return Finding("nvcc", "fail" if has_gpu else "warn", seen, f"`{found} --version` fails: install it again, "
                       "or unset CUDA_HOME and take it off PATH")
    if has_gpu and cuda and version.split(".")[0] != cuda.split(".")[0]:
        return Finding("nvcc", "fail", f"{seen}; torch is built for CUDA {cuda}",
                       f"set CUDA_HOME to a CUDA {cuda.split('.')[0]} toolkit")
    return Finding("nvcc", "ok", seen)


def ninja() -> Finding:
    """ninja, which torch's builder calls."""
    version = machine.output("ninja", "--version")
    if version is None:
        return Finding("ninja", "fail", "not on PATH", f"{SET_UP}, or: python -m pip install ninja")
    return Finding("ninja", "ok", f"{version} at {shutil.which('ninja')}")


def disk() -> Finding:
    """Free space where the builds and .venv go."""
    free = shutil.disk_usage(REPOSITORY).free / 2**30
    state = "fail" if free < LEAST_DISK_GIB else "warn" if free < ENOUGH_DISK_GIB else "ok"
    advice = "" if state == "ok" else f"free {ENOUGH_DISK_GIB:.0f} GiB, for example with: python3 -m labkit clean"
    return Finding("disk", state, f"{free:.1f} GiB free", advice)


def build_folder() -> Finding:
    """Whether builds can be written."""
    folder = REPOSITORY / "build"
    try:
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding("build folder", "fail", f"{folder}: {error.strerror}",
                       "work in a copy of the repository that is yours")
    return Finding("build folder", "ok", f"{folder} can be written")


def nsight_compute() -> Finding:
    """Nsight Compute, and whether the driver lets this user read hardware counters."""
    # Installers leave it off PATH, so the usual places are looked through too.
    found = machine.find_ncu()
    if not machine.driver():
        return Finding("Nsight Compute", "ok", f"{found}; there is no GPU to profile" if found else
                       "none, and no GPU to profile")
    if found is None:
        return Finding("Nsight Compute", "warn", "none: the lab on profiling shows recorded profiles",
                       "install Nsight Compute from NVIDIA, or the CUDA toolkit")
    if _counters_restricted():
        return Finding("Nsight Compute", "warn", f"{found}; the driver lets only administrators read counters",
                       "have NVreg_RestrictProfilingToAdminUsers=0 set for the nvidia module, or run ncu as root")
    return Finding("Nsight Compute", "ok", f"{found}; nothing seen that keeps its counters from you")


def jupyter() -> Finding:
    """JupyterLab, what runs the labs, and Jupyter Book."""
    needed = {"nbclient": "nbclient", "ipykernel": "ipykernel", "jupyterlab": "jupyterlab",
              "jupyter-book": "jupyter_book"}
    missing = [name for name, module in needed.items() if importlib.util.find_spec(module) is None]
    if missing:
        state = "fail" if {"nbclient", "ipykernel"} & set(missing) else "warn"
        return Finding("Jupyter", state, f"missing: {', '.join(missing)}",
                       f"{SET_UP}, or: python -m pip install -r requirements.txt")
    return Finding("Jupyter", "ok", ", ".join(f"{name} {_version(name)}" for name in needed))


def _counters_restricted() -> bool:
    if os.geteuid() == 0:
        return False
    try:
        parameters = DRIVER_PARAMETERS.read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"^RmProfilingAdminOnly:\s*1", parameters, re.MULTILINE) is not None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _print(findings: list[Finding]) -> None:
    if importlib.util.find_spec("rich") is None:
        for finding in findings:
            print(f"{finding.state:5} {finding.what}: {finding.seen}")
            if finding.advice:
                print(f"      do: {finding.advice}")
        return
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    colours = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table("", "what", "seen", "what to do", box=box.SIMPLE_HEAD)
    for finding in findings:
        table.add_row(f"[{colours[finding.state]}]{finding.state}[/]", escape(finding.what), escape(finding.seen),
                      escape(finding.advice))
    Console(width=None if sys.stdout.isatty() else 140).print(table)
