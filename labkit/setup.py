"""Make .venv and install what the book needs into it. Only the standard library: it runs before anything is there.

`ensure` is what every command calls. It reads a stamp in .venv and returns at once when nothing has changed;
else it makes the environment, installs this repository with its requirements, and, where there is no nvcc, the CUDA
toolkit from PyPI. Whatever goes wrong ends as one SetupError that says what to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from labkit import REPOSITORY, machine
from labkit.environment import importable
from labkit.pip import Killed, SetupError, pip_install

VENV = REPOSITORY / ".venv"
TOOLKIT_EXTRAS = "nvcc,nvvm,crt,cudart,cccl"  # with nvcc alone the parts drift to another release, and fail
TO_READ_WITH = "13.0.2"  # the release whose nvcc compiles what is only read, where no torch asks for another


def ensure() -> Path:
    """The Python of .venv, made and filled where it is not up to date; well under a second when it is.

    Raises SetupError, whose text says what to do, when it cannot be made.
    """
    if _up_to_date():
        return _python()
    _check_compiler()
    _check_disk()
    try:
        with _one_at_a_time():
            if not _up_to_date():  # another set-up may have done it while this one waited
                _install()
    except OSError as error:
        mend = "free some disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (
            "copy this repository to a folder that is yours, or use this Python as it is: add --here")
        raise SetupError(f"{error.strerror}: {error.filename or REPOSITORY}. To mend it: {mend}.") from None
    return _python()


def activate(environment: dict) -> dict:
    """`environment` as inside .venv: its programs first on PATH, labkit importable from any folder, bytecode kept, file
    names in UTF-8.

    Labs and tests start hundreds of processes. Without bytecode (images of Docker often ask for that) each of them would
    parse PyTorch anew, which takes longer than what most of them do.
    """
    inside = importable({**environment, "VIRTUAL_ENV": str(VENV)})
    inside["PATH"] = os.pathsep.join(filter(None, [str(VENV / "bin"), environment.get("PATH")]))
    inside["PYTHONUTF8"] = "1"  # a folder's name may have letters that the locale lacks
    for name in ("PYTHONHOME", "PYTHONDONTWRITEBYTECODE"):
        inside.pop(name, None)
    return inside


def usable() -> Path | None:
    """The Python of .venv where a set-up has completed there, up to date or not; None otherwise."""
    return _python() if _marker().get("state") == "complete" and _minor_version() else None


def complete_toolkit(home: Path) -> None:
    """Add the two names to PyPI's toolkit in `home` that a linker looks for and the packages lack.

    nvcc and torch's builder link with -L<home>/lib64 -lcudart. The packages have lib/ only, and in it
    libcudart.so.13 but no plain libcudart.so, which is the name that -lcudart means.
    """
    lib = home / "lib"
    if not (home / "lib64").exists():
        (home / "lib64").symlink_to("lib")
    versioned = sorted(lib.glob("libcudart.so.*"))
    if versioned and not (lib / "libcudart.so").exists():
        (lib / "libcudart.so").symlink_to(versioned[-1].name)


def _install() -> None:
    before = _marker()
    if before.get("state") == "installing" and before["ours"]:
        print("The last set-up was interrupted; making .venv afresh.")
        shutil.rmtree(VENV)
    elif VENV.exists() and _minor_version() is None:
        # Never remove what we did not make: without our marker this folder is the reader's own.
        if not before.get("ours"):
            raise SetupError(f"{VENV} is there, but its Python or pip does not start, and labkit did not make it. "
                             "Move it away or remove it (or, where uv made it without pip: uv pip install pip), then run the "
                             "same command again.")
        print("The Python that .venv was made from is gone; making .venv afresh.")
        shutil.rmtree(VENV)
    made = not VENV.exists()
    _say_what_comes()
    VENV.mkdir(exist_ok=True)
    _mark({"state": "installing", "ours": made or before.get("ours", False)})
    try:
        if made:
            _make_venv()
        _pip("--editable", ".")
        _install_toolkit()
    except Killed:
        raise  # what it leaves is half-made, as the marker says
    except SetupError:
        # pip gave up in an orderly way, so an environment that worked still does: the next run need not remake it.
        if made:
            shutil.rmtree(VENV)
        else:
            _mark(before)
        raise
    _mark({"state": "complete", "ours": made or before.get("ours", False), **_wanted()})
    print(f"Set up in {VENV}", flush=True)


def _install_toolkit() -> None:
    """Where there is no nvcc, install it from PyPI: of the release that torch was built for, or else one to read with.

    Only a GPU that torch uses needs it. Elsewhere labs compile kernels to read their machine code, and do without as well.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return  # PyPI has none
    has_gpu = _nvidia_gpu()
    cuda, nvcc, release = _toolkit_facts()
    if nvcc is None:
        fits = cuda is not None and int(cuda.split(".")[0]) >= 13
        if has_gpu and cuda is None:
            print("There is an NVIDIA GPU, but torch is a build without CUDA: the labs use the CPU.")
        elif has_gpu and not fits:
            print(f"There is a GPU and no nvcc, and PyPI has no whole nvcc for CUDA {cuda}: the labs use the CPU "
                  f"until you install the CUDA toolkit {cuda} from NVIDIA.")
            return
        print("There is no nvcc: installing the CUDA compiler from PyPI (about 0.1 GB).", flush=True)
        # torch pins the release of cuda-toolkit whose libraries it uses: another one would replace those.
        wanted = (release or f"{cuda}.*") if fits else TO_READ_WITH
        try:
            _pip(f"cuda-toolkit[{TOOLKIT_EXTRAS}]=={wanted}")
        except Killed:
            raise
        except SetupError as error:
            if has_gpu and fits:
                raise
            print(f"It was not installed, and labs show recorded machine code: {error}", flush=True)
            return
        nvcc = _toolkit_facts()[1]
    if nvcc is not None and Path(nvcc).is_relative_to(VENV):
        complete_toolkit(Path(nvcc).parent.parent)


def _toolkit_facts() -> list:
    """As .venv's Python sees them: the CUDA that torch was built for, nvcc's path, cuda-toolkit's release."""
    code = ("import json, torch, importlib.metadata as m; from labkit import machine; nvcc = machine.find_nvcc(); "
            "release = [d.version for d in m.distributions() if d.name == 'cuda-toolkit']; "
            "print(json.dumps([torch.version.cuda, nvcc and str(nvcc), release[0] if release else None]))")
    done = subprocess.run([str(_python()), "-c", code], cwd=REPOSITORY, env=activate(os.environ),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
    if done.returncode:
        raise SetupError(f"torch was installed but does not start: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def _pip(*arguments: str) -> None:
    pip_install(*arguments, python=_python(), folder=REPOSITORY, log=REPOSITORY / "build" / "setup.log")


def _make_venv() -> None:
    module = "venv" if importlib.util.find_spec("ensurepip") else "virtualenv"
    if importlib.util.find_spec(module) is None:
        version = ".".join(map(str, sys.version_info[:2]))
        raise SetupError(f"this Python ({sys.executable}) cannot make virtual environments: ensurepip is missing. "
                         f"On Debian or Ubuntu: sudo apt install python{version}-venv; elsewhere install "
                         "virtualenv. Or use this Python as it is: add --here.")
    base = getattr(sys, "_base_executable", None) or sys.executable  # not .venv's own, which may just be gone
    done = subprocess.run([base, "-m", module, str(VENV)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")
    if done.returncode:
        raise SetupError(f"`{base} -m {module} {VENV}` failed: {' '.join(done.stdout.split())[-400:]}")


def _check_compiler() -> None:
    if machine.find_cxx() is None:
        named = f"CXX names {os.environ['CXX']!r}, which is not there" if os.environ.get("CXX") else "none is there"
        raise SetupError(f"a C++ compiler is needed, and {named}. On Debian or Ubuntu: sudo apt install g++; "
                         "on Fedora: sudo dnf install gcc-c++")


def _check_disk() -> None:
    if not machine.runs_programs_from(REPOSITORY):
        raise SetupError(f"the disk of {REPOSITORY} is mounted noexec, so that nothing could be run that is installed there. "
                         "Copy this repository to another disk, or use this Python as it is: add --here, and name a folder for "
                         "builds in LABKIT_BUILD.")


def _say_what_comes() -> None:
    free = shutil.disk_usage(REPOSITORY).free / 2**30
    print(f"Setting up {VENV} (once; {free:.0f} GiB free on this disk).")
    if sys.platform == "linux":
        print("  Up to about 2 GB come down and 6 GB go on disk: PyPI's torch for Linux brings the CUDA libraries,\n"
              "  with or without a GPU. Where pip is configured to find a CPU build of torch, it is about 0.7 GB.")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        print(f"  This Python already has torch {importlib.metadata.version('torch')}: to use that rather than\n"
              "  install another, interrupt this and add --here to the command.")
    sys.stdout.flush()


def _nvidia_gpu() -> bool:
    if machine.output("nvidia-smi", "-L"):
        return True
    try:
        cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError:
        return False
    return cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


@contextlib.contextmanager
def _one_at_a_time():
    # The system drops this lock when its holder ends, however it ends: no stale lock can be left.
    path = REPOSITORY / "build" / "setup.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another set-up of this repository is running; waiting for it.", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _python() -> Path:
    return VENV / "bin" / "python"


def _minor_version() -> str | None:
    """Of the Python in .venv, for example "3.12"; None where it does not start or has lost its pip."""
    code = "import sys, importlib.util as u; u.find_spec('pip') and print('%d.%d' % sys.version_info[:2])"
    return machine.output(_python(), "-c", code) or None


def _wanted() -> dict:
    requirements = (REPOSITORY / "requirements.txt").read_bytes()
    return {"requirements": hashlib.sha256(requirements).hexdigest(), "python": _minor_version(),
            "folder": str(REPOSITORY)}


def _up_to_date() -> bool:
    marker = _marker()
    return marker.get("state") == "complete" and _wanted().items() <= marker.items()


def _marker() -> dict:
    """What labkit wrote into .venv: state ("installing" or "complete"), ours (labkit made it), and the stamp."""
    try:
        return json.loads((VENV / "labkit-setup.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _mark(facts: dict) -> None:
    path = VENV / "labkit-setup.json"
    if facts:
        path.write_text(json.dumps(facts), encoding="utf-8")
    else:
        path.unlink()
