"""`provoke`: what goes wrong around a build, provoked; what torch's `load` says to it, what labkit's, and what comes after.

    python -m labkit.build_faults torch|labkit FOLDER FAULT...    tries, mends the fault, tries again; prints all as JSON

The faults live in the environment of a process of their own and in a folder that goes afterwards: nothing of this machine
and nothing of this session changes.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import dataclasses
import importlib
import io
import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import Callable

import torch
from torch.utils import cpp_extension

import labkit
from labkit import build, machine, results, toolchain
from labkit.environment import environment, in_a_new_process
from labkit.report import keep, show_recorded

PATIENCE = 12  # seconds for a try that waits for ever; a build of these sources takes three
LIMIT = 120  # seconds for a fault, which is tried twice
_PYTHON, _TORCH = sys.executable, torch.__version__

_CPU_SOURCE = '#include <system.h>\nextern "C" int value() { return VALUE; }\n'
_GPU_SOURCE = """\
#include <cuda_runtime.h>
__global__ void set(int* out) { *out = 1; }
static cudaError_t error;
extern "C" const char* said() { return cudaGetErrorString(error); }
extern "C" int value() {
    int *out, value = 0;
    cudaMalloc(&out, sizeof(int));
    set<<<1, 1>>>(out);
    error = cudaGetLastError();
    cudaMemcpy(&value, out, sizeof(int), cudaMemcpyDeviceToHost);
    cudaFree(out);
    return value;
}
"""


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something wrong around a build.

    prepare: makes what it needs in a folder and returns the environment variables that bring it about. gpu: whether it takes
    a GPU. before: whether a sound build comes first; then: what changes after that. mend: what undoes that. due: what the code
    returns that has to run.
    """

    name: str
    prepare: Callable[[Path], dict[str, str]] = lambda folder: {}
    gpu: bool = False
    before: bool = False
    then: Callable[[Path], None] = lambda folder: None
    mend: Callable[[Path], None] = lambda folder: None
    due: int = 1


# -- the faults ---------------------------------------------------------------------------------------------

def _without_ninja(folder: Path) -> dict[str, str]:
    """A PATH on which all programs are but ninja."""
    links = folder / "bin"
    links.mkdir()
    for place in map(Path, os.environ["PATH"].split(os.pathsep)):
        for program in place.iterdir() if place.is_dir() else ():
            if program.name != "ninja" and not (links / program.name).is_symlink():
                (links / program.name).symlink_to(program)
    return {"PATH": str(links)}


def _script(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def _other_nvcc(folder: Path) -> dict[str, str]:
    """The real toolkit, but for its word on which release it is: two majors older."""
    real, home = machine.cuda_home(), folder / "cuda"
    home.mkdir()
    for part in real.iterdir():
        if part.name != "bin":
            (home / part.name).symlink_to(part)
    version = f"{int(torch.version.cuda.split('.')[0]) - 2}.8"
    _script(home / "bin" / "nvcc", f'[ "$1" = --version ] && echo "release {version}, V{version}.89" && exit 0\n'
                                   f'exec {real}/bin/nvcc "$@"')
    return {"CUDA_HOME": str(home)}


def _new_compiler(folder: Path) -> dict[str, str]:
    """The real C++ compiler, but it says that it is release 99."""
    named = _script(folder / "g++-99", f'exec {machine.find_cxx()} -U__GNUC__ -D__GNUC__=99 "$@"')
    return {"CC": named}


def _other_architecture(folder: Path) -> dict[str, str]:
    major = int(machine.gpu()["capability"].split(".")[0])
    return {"TORCH_CUDA_ARCH_LIST": "9.0" if major == 8 else "8.0"}


def _locks(folder: Path) -> list[Path]:
    """The files by which torch and labkit tell other processes that they build."""
    (name, version), backend = _operator(FAULTS[LOCK]), machine.backend()
    key = build.fingerprint(name, backend, sum(build.flags(backend, version), []))
    place = build.build_root() / name
    place.mkdir(parents=True, exist_ok=True)
    return [folder / "torch" / "lock", place / f"{backend}-{key}.lock"]


def _upgrade_torch(folder: Path) -> None:
    (folder / "system" / "system.h").write_text("#define VALUE 2\n", encoding="utf-8")
    torch.__version__ = "another"


def _restore_torch(folder: Path) -> None:
    torch.__version__ = _TORCH


LOCK = "a lock that a killed build has left"
FAULTS = {fault.name: fault for fault in [
    Fault("ninja is not on PATH", _without_ninja),
    Fault("ninja is not installed", _without_ninja, then=lambda folder: setattr(sys, "executable", str(folder / "python")),
          mend=lambda folder: setattr(sys, "executable", _PYTHON)),
    Fault("CXX names no compiler", lambda folder: {"CXX": "g++-98"}),
    Fault(LOCK, then=lambda folder: [lock.touch() for lock in _locks(folder)],
          mend=lambda folder: [lock.unlink(missing_ok=True) for lock in _locks(folder)]),
    Fault("torch was upgraded, the cache was not", before=True, then=_upgrade_torch, due=2,
          mend=_restore_torch),
    Fault("CUDA_HOME names no toolkit", lambda folder: {"CUDA_HOME": str(folder / "nowhere")}, gpu=True),
    Fault("an nvcc that says it is of another CUDA", _other_nvcc, gpu=True),
    Fault("the C++ compiler is too new for nvcc", _new_compiler, gpu=True),
    Fault("built for another architecture", _other_architecture, gpu=True),
]}


# -- the parent ---------------------------------------------------------------------------------------------

def provoke(name: str, faults: tuple[str, ...] | None = None) -> list[dict]:
    """Provokes faults around a build and shows what becomes of each, with torch's `load` and with labkit's.

    name: what the table is called in results/; <name>_labkit is that of labkit.load. faults: some of
    `labkit.build_faults.FAULTS`; by default all that this machine can have: those of nvcc need a GPU.

    A row a fault: what `load` did and said (the last line of its error), and what the next try in the same process did once
    the cause was mended. Returns a dict a fault with both of these under "torch" and "labkit". Without a GPU the recorded
    table is shown as well. ValueError for a fault that there is not.
    """
    on_gpu = machine.backend() == "cuda"
    possible = [fault.name for fault in FAULTS.values() if on_gpu or not fault.gpu]
    chosen = possible if faults is None else list(faults)
    if unknown := [fault for fault in chosen if fault not in possible]:
        raise ValueError(f"faults has {unknown[0]!r}; on this machine there are {', '.join(possible)}")
    if not on_gpu and results.session().lab is not None:
        show_recorded([name, f"{name}_labkit"], "Faults around a build")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        torchs, ours = pool.map(_outcomes, ("torch", "labkit"), (chosen, chosen))
    rows = [{"fault": fault, "torch's load()": first, "once mended": later} for fault, (first, later) in zip(chosen, torchs)]
    mended = [{"fault": fault, "labkit.load": first, "once mended": later} for fault, (first, later) in zip(chosen, ours)]
    results.note("exact", "Faults around a build", f"{len(rows)} provoked")
    keep({name: results.table_of("Faults around a build, with torch's load()", rows),
          f"{name}_labkit": results.table_of("The same faults, with labkit.load", mended)})
    return [{"fault": fault, "torch": first, "labkit": second} for fault, first, second in zip(chosen, torchs, ours)]


def _outcomes(who: str, faults: list[str]) -> list[tuple[str, str]]:
    """For each fault what the first try did, and the one after it was mended."""
    with tempfile.TemporaryDirectory() as folder:
        return in_a_new_process("labkit.build_faults", who, folder, *faults, timeout=LIMIT * len(faults),
                                LABKIT_BUILD=str(Path(folder) / "labkit"), LABKIT_LOG="")


# -- the child ----------------------------------------------------------------------------------------------

def _task(attempt: Callable[[Path, Fault], str], folder: Path, fault: Fault) -> tuple[str, str]:
    for part in ("torch", "system"):
        (folder / part).mkdir(parents=True)
    (folder / "system" / "system.h").write_text("#define VALUE 1\n", encoding="utf-8")
    (folder / f"source.{'cu' if fault.gpu else 'cpp'}").write_text(_GPU_SOURCE if fault.gpu else _CPU_SOURCE, encoding="utf-8")
    if fault.before:
        attempt(folder, fault)
    with environment(**fault.prepare(folder)):
        importlib.reload(cpp_extension)  # it looks for the toolkit when it is imported, and never again
        toolchain.quote_torchs_libraries()
        fault.then(folder)
        first = _said(attempt, folder, fault)
    fault.mend(folder)
    return first, _said(attempt, folder, fault)


class _Waits(BaseException):
    """Not an Exception: what a library catches on its way must not be this."""


def _said(attempt: Callable[[Path, Fault], str], folder: Path, fault: Fault) -> str:
    def give_up(*_: object) -> None:
        raise _Waits

    patience = PATIENCE if fault.name == LOCK else LIMIT
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(patience)
    try:
        return attempt(folder, fault)
    except _Waits:
        return f"waits and says nothing; ended after {patience} s"
    except Exception as error:  # whatever it is, it is what a user would have seen
        lines = [line for line in str(error).splitlines() if line.strip()]
        if isinstance(error, build.BuildError):
            return f"BuildError: {_plain(' '.join(line for line in lines if not line.startswith('(')), folder)}"
        told = f"{type(error).__name__}: {_plain(lines[-1], folder)}"
        return told if len(lines) == 1 else f"{told} (the last of {len(lines)} lines)"
    finally:
        signal.alarm(0)


def _torch(folder: Path, fault: Fault) -> str:
    cpp_extension.load(folder.name, str(next(folder.glob("source.*"))), build_directory=str(folder / "torch"),
                       extra_cflags=["-isystem", str(folder / "system")], with_cuda=fault.gpu, is_python_module=False)
    library = ctypes.CDLL(str(max((folder / "torch").glob("*.so"), key=lambda path: path.stat().st_mtime_ns)))
    value = library.value()
    if value == fault.due:
        return "works"
    if not fault.gpu:
        return "runs the old code and says nothing"
    library.said.restype = ctypes.c_char_p
    raise RuntimeError(f"CUDA error: {library.said().decode()}")


def _labkit(folder: Path, fault: Fault) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as told:
        labkit.load(*_operator(fault))
    return "works, built again" if fault.before and " built for " in told.getvalue() else "works"


def _operator(fault: Fault) -> tuple[str, int]:
    """An operator and a version, which no other fault builds."""
    names = [("copy", version) for version in range(1, 6)] + [("transpose", version) for version in range(1, 5)]
    return names[list(FAULTS).index(fault.name)]


def _plain(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "…").replace(folder.name, "tried")
    return re.sub(r"[/…]\S*/(?=[\w.+-]+)", "…/", text.strip())


if __name__ == "__main__":
    _folder = Path(sys.argv[2])
    print(json.dumps([_task({"torch": _torch, "labkit": _labkit}[sys.argv[1]], _folder / f"tried{_number}", FAULTS[_name])
                      for _number, _name in enumerate(sys.argv[3:])]))
