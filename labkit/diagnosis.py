"""What this machine has for the labs, what is wrong with it, and the one thing to do about each.

Only the standard library and torch where it is there: it must also run on a machine where the set-up failed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable

from labkit import REPOSITORY, machine
from labkit.build_errors import NO_PROGRAMS, advice
from labkit.build_folder import build_root, holders, locked
from labkit.findings import Finding, show
from labkit.importing import from_pythonpath, torch_again, torch_error

DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
ENOUGH_DISK_GIB, LEAST_DISK_GIB, ENOUGH_MEMORY_GIB, LONG_BUILD_MINUTES = 5.0, 0.5, 1.0, 15
LEAST_DRIVER = {12: 525, 13: 580}  # by CUDA's major version, on Linux
SET_UP = "python3 -m labkit setup"

_sound: set[tuple] = set()  # compilers that have worked in this process, and for what


def doctor() -> list[Finding]:
    """Look this machine over, print what was found as a table, and return the findings.

    "fail" is what no lab runs without, or what breaks one; "warn" is what some of them lack. Having no GPU is
    neither: the labs then run on the host backend.
    """
    looks = (python, variables, compiler, packages, gpu, nvcc, ninja, memory, disk, build_folder, builds, home,
             nsight_compute, jupyter)
    with ThreadPoolExecutor() as pool:  # most wait for a program, while one imports torch
        findings = [*pool.map(_found, looks)]
    show(findings)
    return findings


def _found(look: Callable[[], Finding]) -> Finding:
    """What a look finds; and where it ends in an error that nobody has thought of, that, since the other looks still count."""
    try:
        return look()
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return Finding(look.__name__.replace("_", " "), "fail", said, advice(said) or "mend what this names, and look again")


def python() -> Finding:
    """Which Python runs this (the command line refuses one older than 3.10), and whether it can name the book's files."""
    seen, encoding = f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}", sys.getfilesystemencoding()
    if encoding != "utf-8" and not all(str(path).isascii() for path in (REPOSITORY, build_root(), sys.prefix)):
        return Finding("Python", "fail", f"{seen}; file names are {encoding} in this locale, and a folder's here is not",
                       "set PYTHONUTF8=1 and start Python anew")
    return Finding("Python", "ok", seen)


def variables() -> Finding:
    """What the variables say that are labkit's own."""
    try:
        machine.forced_host()
        build_root()
    except ValueError as error:
        seen, _, what_to_do = str(error).partition("; ")
        return Finding("variables", "fail", seen, what_to_do)
    kernels = os.environ.get("LABKIT_KERNELS")
    if kernels and not os.path.isdir(kernels):
        return Finding("variables", "fail", f"LABKIT_KERNELS={kernels} is no folder",
                       "unset LABKIT_KERNELS, or name a copy of kernels/ in it by its whole path")
    named = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("LABKIT_")]
    return Finding("variables", "ok", ", ".join(named) or "none of labkit's is set")


def compiler() -> Finding:
    """The C++ compiler, asked to compile what includes a C++20 header."""
    found = machine.find_cxx()
    if found is None:
        if os.environ.get("CXX"):
            return Finding("C++ compiler", "fail", f"CXX={os.environ['CXX']} is not there",
                           "unset CXX, or name one program in it, such as CXX=g++-12")
        return Finding("C++ compiler", "fail", "none (c++ is not on PATH)",
                       "install one: apt install g++, or dnf install gcc-c++")
    seen = f"{(machine.output(found, '--version') or 'no version').splitlines()[0]} at {found}"
    if wrong := _wrong(found):
        return Finding("C++ compiler", "fail", f"{seen}; {wrong}",
                       "install g++ 11 or clang 14, or newer, and name it: CXX=g++-12")
    return Finding("C++ compiler", "ok", seen)


def _wrong(compiler: Path) -> str | None:
    """What keeps it from compiling C++20, in words. One that did is not asked again: each build looks, and there are many in
    one process.
    """
    if (compiler,) not in _sound:
        try:  # to assembly, on its standard output, which needs no disk
            done = subprocess.run([compiler, "-std=c++20", "-S", "-x", "c++", "-", "-o", "-"], capture_output=True, timeout=20,
                                  input=b"#include <bit>\nstatic_assert(std::popcount(7u) == 3);\n")
        except (OSError, subprocess.SubprocessError):
            return "it does not compile C++20"
        if done.returncode:
            return "it does not compile C++20"
        if not done.stdout:
            return "it reports success and makes nothing"
        _sound.add((compiler,))
    return None


def packages() -> Finding:
    """torch, and whether what requirements.txt names is here in a fitting version."""
    torch = _version("torch")
    if torch is None:
        return Finding("packages", "fail", f"torch is not in {sys.prefix}", SET_UP)
    if error := torch_error():
        return Finding("packages", "fail", f"torch {torch} cannot be imported: {error}", python().advice or torch_again())
    from labkit import requirements  # here: it needs packaging

    unmet = [f"{wanted.name} {requirements.installed(wanted.name) or 'missing'}" for wanted in requirements.asked()
             if not requirements.met(wanted)]
    cuda = machine.versions()["cuda"]
    seen = f"torch {torch}, {'built for CUDA ' + cuda if cuda else 'a build without CUDA'}"
    if unmet:
        brought = any(from_pythonpath(name.split()[0]) for name in unmet)
        return Finding("packages", "warn", f"{seen}; not as requirements.txt asks: {', '.join(unmet)}"
                       f"{', which PYTHONPATH brings' if brought else ''}", "unset PYTHONPATH" if brought else SET_UP)
    if re.search(r"""[\s'"]""", sys.prefix):
        return Finding("packages", "warn", f"{seen}; torch.compile cannot build for the CPU with torch in {sys.prefix}",
                       "clone the repository into a path without spaces and quotes, and set it up there")
    return Finding("packages", "ok", seen)


def gpu() -> Finding:
    """The GPU that torch sees, or why it does not see the one that is there."""
    seen = machine.gpu() if _version("torch") and not torch_error() else None
    driver = machine.driver()
    if seen:
        words = f"{seen['name']}, {machine.arch()}, {seen['memory_gib']:.0f} GiB, driver {driver or 'unknown'}"
        held = machine.torch_archs()
        if _runs_code_for(held, seen["capability"]):
            return Finding("GPU", "ok", words)
        words += f"; this torch has code for {', '.join(held)} alone"
        if os.environ.get("LABKIT_BACKEND") == "host":
            return Finding("GPU", "ok", f"{words}, and LABKIT_BACKEND=host keeps to the CPU")
        return Finding("GPU", "fail", words, f"install a torch with code for {machine.arch()}: the wheel of "
                       f"{'a newer' if _newer(seen['capability'], held) else 'an older'} CUDA; or set LABKIT_BACKEND=host")
    if driver is None:
        return Finding("GPU", "ok", "none; the labs run on the host backend and show recorded GPU figures")
    if error := torch_error():
        return Finding("GPU", "warn", f"driver {driver}; torch cannot be imported: {error}", python().advice or torch_again())
    cuda = machine.versions()["cuda"]
    if cuda is None:
        return Finding("GPU", "warn", f"driver {driver}, but torch is a build without CUDA",
                       "install a CUDA build of torch, or use the host backend")
    unseen = f"driver {driver}, but torch (CUDA {cuda}) does not see a GPU"
    least = LEAST_DRIVER.get(int(cuda.split(".")[0]), 0)
    if int(driver.split(".")[0]) < least:
        return Finding("GPU", "warn", f"{unseen}: CUDA {cuda} needs driver {least} or newer",
                       f"update the driver to {least} or newer, or use a torch for your driver with --here")
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return Finding("GPU", "warn", f"{unseen}: CUDA_VISIBLE_DEVICES is {os.environ['CUDA_VISIBLE_DEVICES']!r}",
                       "unset CUDA_VISIBLE_DEVICES")
    return Finding("GPU", "warn", unseen, "restart the machine, or in a container start it with its GPUs (--gpus all)")


def _runs_code_for(held: list[str], capability: str) -> bool:
    """Whether a GPU runs code for one of these architectures; taken as given where their names say nothing."""
    rule = runpy.run_path(str(REPOSITORY / "labs" / "wheel" / "gelu_op" / "compatibility.py"))
    try:
        return not held or rule["compatible"](held, capability) != rule["NO_IMAGE"]
    except ValueError:  # a name of a later torch
        return True


def _newer(capability: str, held: list[str]) -> bool:
    """Whether a GPU is newer than all that there is code for; else it is older, or between."""
    number = int(capability.replace(".", ""))
    return all(int(re.sub(r"\D", "", name)) < number for name in held)


def nvcc() -> Finding:
    """nvcc. Where kernels run on a GPU, its major version must be that of torch's CUDA; else they are compiled to be read.

    It is asked whether it takes this C++ compiler, and this GPU.
    """
    found, version = machine.find_nvcc(), machine.nvcc_version()
    has_torch = bool(_version("torch")) and not torch_error()
    cuda = machine.versions()["cuda"] if has_torch else None
    has_gpu = has_torch and bool(machine.gpu()) and os.environ.get("LABKIT_BACKEND") != "host"
    named = next((f"{name}={os.environ[name]}" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)), None)
    variable, _, folder = (named or "").partition("=")
    wrong = named is not None and not machine.is_program(Path(folder) / "bin" / "nvcc")
    if found is None and wrong:
        return Finding("nvcc", "warn", f"none, and {named} holds none",
                       f"set {variable} to a CUDA toolkit's folder, or unset it")
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
    if (host_compiler := os.environ.get("CC")) and not shutil.which(host_compiler):  # torch hands it on as -ccbin
        return Finding("nvcc", "fail" if has_gpu else "warn", f"{seen}; CC={host_compiler}, which it is to call, is not there",
                       "unset CC, or name one program in it, such as CC=gcc-12")
    if said := _refusal(Path(found), version, machine.arch() if has_gpu else None):
        return Finding("nvcc", "fail" if has_gpu else "warn", f"{seen}; it says: {said}",
                       advice(said) or "install the CUDA toolkit again, or name another in CUDA_HOME")
    if unfit := _unfit("""[,'"`]"""):
        return Finding("nvcc", "fail" if has_gpu else "warn", f"{seen}; it cannot take {unfit}",
                       "move that folder to a path without commas and quotes, or name another for builds in LABKIT_BUILD")
    if wrong:
        return Finding("nvcc", "warn", f"{seen}; {named} holds none", f"unset {variable}")
    return Finding("nvcc", "ok", seen)


def _refusal(nvcc: Path, version: str, arch: str | None) -> str | None:
    """What nvcc says against this C++ compiler or this GPU; None where it takes both, which it is then not asked again."""
    host_compiler = os.environ.get("CC")
    tried = (nvcc, version, host_compiler, os.environ.get("PATH"), arch)
    if tried not in _sound:
        options = ["-ccbin", host_compiler] if host_compiler else []
        options += [f"-gencode=arch={arch.replace('sm', 'compute')},code={arch}"] if arch else []
        try:
            done = subprocess.run([nvcc, *options, "-E", "-x", "cu", os.devnull, "-o", os.devnull], stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=20, encoding="utf-8", errors="replace")
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        if done.returncode:
            said = done.stdout + done.stderr
            lines = [line for line in said.splitlines() if re.search("error|fatal|not found", line)] or [said.strip()[-200:]]
            return re.sub(r"^.*?(#error -- |fatal\s*: )| The nvcc flag '-allow.*", "", lines[0]).strip(" .!")
        _sound.add(tried)
    return None


def ninja() -> Finding:
    """ninja, which torch's builder calls, and whether its files can name the folders here."""
    # As for a build, beside this Python too: a shell may not have activated the environment.
    found = shutil.which("ninja", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    version = machine.output(found, "--version") if found else None
    if version is None:
        return Finding("ninja", "fail", f"{found} does not run" if found else "not on PATH",
                       f"{SET_UP}, or: python -m pip install ninja")
    if unfit := _unfit("[$:]"):  # torch leaves them as they are, and ninja reads them as its own signs
        return Finding("ninja", "fail", f"{version} at {found}; it cannot take {unfit}",
                       "move that folder to a path without $ and :, or name another folder for builds in LABKIT_BUILD")
    return Finding("ninja", "ok", f"{version} at {found}")


def _unfit(signs: str) -> str | None:
    """The first of some signs in the path of a folder in which, or against which, kernels are built."""
    found = ((re.search(signs, str(folder)), folder) for folder in (REPOSITORY, build_root(), sys.prefix))
    return next((f"the {sign[0]} in {folder}" for sign, folder in found if sign), None)


def memory() -> Finding:
    """Free memory, which compilers need; with less, fewer of them run at a time."""
    free = machine.free_memory()
    if free is not None and free < ENOUGH_MEMORY_GIB:
        return Finding("memory", "warn", f"{free:.1f} GiB free; compilers may be killed", advice("out of memory"))
    return Finding("memory", "ok", "unknown" if free is None else f"{free:.1f} GiB free")


def disk() -> Finding:
    """Free space where .venv, the builds and the compilers' temporary files go."""
    free = shutil.disk_usage(REPOSITORY).free / 2**30
    try:
        temporary = Path(tempfile.gettempdir())
    except FileNotFoundError:
        return Finding("disk", "fail", "no folder for temporary files can be written", "name one in TMPDIR")
    # os.path.exists: a folder that this user may not enter is as good as none.
    root = next(path for path in (build_root(), *build_root().parents) if os.path.exists(path))
    for what, place, variable in (("temporary files", temporary, "TMPDIR"), ("builds", root, "LABKIT_BUILD")):
        if (there := shutil.disk_usage(place).free / 2**30) < LEAST_DISK_GIB <= free:
            return Finding("disk", "fail", f"{there:.1f} GiB free for {what}, in {place}",
                           f"free {LEAST_DISK_GIB} GiB there, or name another folder in {variable}")
    state = "fail" if free < LEAST_DISK_GIB else "warn" if free < ENOUGH_DISK_GIB else "ok"
    return Finding("disk", state, f"{free:.1f} GiB free", "" if state == "ok" else
                   f"free {ENOUGH_DISK_GIB:.0f} GiB, for example with: python3 -m labkit clean")


def build_folder() -> Finding:
    """Whether builds can be written, by one process at a time, and run."""
    folder = build_root()
    try:
        with locked(folder / "doctor"), tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding("build folder", "fail", f"{folder}: {error.strerror}", advice("Permission denied"))
    if not machine.runs_programs_from(folder):
        return Finding("build folder", "fail", f"{folder}: no library can be loaded from there", NO_PROGRAMS)
    return Finding("build folder", "ok", f"{folder} can be written")


def builds() -> Finding:
    """The builds that are under way, and whether one keeps the others waiting. Killed ones hold nothing here, but with torch's
    own builder, whose lock is a file that stays.
    """
    running = holders()
    for lock, holder in running.items():
        minutes = _minutes_since(lock)
        stopped = re.search(r"^State:\s+[Tt]", machine.text_of(Path(f"/proc/{holder}/status")), re.MULTILINE)
        if stopped or minutes > LONG_BUILD_MINUTES:
            why = "stopped" if stopped else f"begun {minutes:.0f} minutes ago"
            return Finding("builds", "warn", f"process {holder}, {why}, holds {lock}", f"end it: kill -9 {holder}")
    for lock in _torch_locks():
        minutes = _minutes_since(lock)
        if minutes > LONG_BUILD_MINUTES:
            return Finding("builds", "warn", f"torch's load waits for a build that was begun {minutes:.0f} minutes ago, "
                           f"and may be dead: {lock}", f"if nothing builds it, remove its lock: rm {shlex.quote(str(lock))}")
    return Finding("builds", "ok", f"under way in process {', '.join(map(str, set(running.values())))}" if running else
                   "none is under way")


def _minutes_since(file: Path) -> float:
    """How long ago it was written; 0 where it has just gone."""
    try:
        return (time.time() - file.stat().st_mtime) / 60
    except FileNotFoundError:
        return 0.0


def _torch_locks() -> list[Path]:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    extensions = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or f"{cache}/torch_extensions")
    with contextlib.suppress(PermissionError):  # who may not enter that folder waits for no lock in it
        return [*extensions.glob("*/lock"), *extensions.glob("*/*/lock")]
    return []


def home() -> Finding:
    """Whether the home folder can be written, where Jupyter, Matplotlib and Triton keep files."""
    folder = os.path.expanduser("~")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding("home", "warn", f"{folder}: {error.strerror}", "name one that can be written: export HOME=$(mktemp -d)")
    return Finding("home", "ok", f"{folder} can be written")


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
