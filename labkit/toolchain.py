"""What compilers get from this process: a PATH, a place for temporary files, how many run at a time, and where CUDA is."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shlex
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType
from typing import Iterator

import torch

from labkit import machine
from labkit.environment import environment

COMPILER_GIB = 1.0  # what a compiler may need; these sources take less than half

_tools_lock, _before, _within = threading.Lock(), contextlib.ExitStack(), 0  # of `tools_on_path`


def jobs() -> int:
    """How many compilers run at a time: MAX_JOBS, or else one a core, as far as the memory that is free goes."""
    asked = os.environ.get("MAX_JOBS", "")
    if asked.isdecimal():
        return max(1, int(asked))
    free = machine.free_memory()
    return max(1, min(os.cpu_count() or 1, int(free / COMPILER_GIB) if free is not None else 2))


def point_torch_to_cuda() -> None:
    """Tells torch's builder and its NVRTC where CUDA is, also where it comes from PyPI's packages."""
    from torch.utils import cpp_extension  # a second of import, and only a build needs it

    home = machine.cuda_home() or (machine.cuda_include() and machine.cuda_include().parent)
    cpp_extension.CUDA_HOME = str(_without_spaces(home)) if home else cpp_extension.CUDA_HOME


def quote_torchs_libraries() -> None:
    """torch's builder hands the folder of its libraries to a shell unquoted, so that a path with a space would fall apart."""
    from torch.utils import cpp_extension  # a second of import, and only a build needs it

    cpp_extension.TORCH_LIB_PATH = shlex.quote(str(Path(torch.__file__).parent / "lib"))


@functools.cache
def _without_spaces(folder: Path) -> Path:
    """A folder, or a link to it for this process: torch hands CUDA's to the linker unquoted, so that a space ends its path."""
    if shlex.quote(str(folder)) == str(folder):
        return folder
    link = Path(tempfile.mkdtemp(dir=_own_folder())) / "cuda"
    link.symlink_to(folder)
    return link


@functools.cache
def _own_folder() -> Path:
    """For temporary files, until this process ends. It goes no sooner: compilers of other threads may have begun to use it."""
    place = Path(tempfile.mkdtemp(prefix="labkit-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


@contextlib.contextmanager
def tools_on_path() -> Iterator[None]:
    """Within, PATH begins with this Python's folder, where ninja is: a shell may not have activated the environment. Compilers
    speak English, in which their errors are looked for, and no more of them run at a time than memory allows. What one that is
    interrupted leaves of its temporary files (nvcc does) goes at the end of this process. An empty CC or CXX is as good
    as none.

    The variables are the process's: of several threads the first to enter sets them, and the last to leave sets them back.
    """
    global _within
    with _tools_lock:
        if _within == 0:
            folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
            with contextlib.suppress(OSError):  # a folder that cannot be made, the compiler or the doctor will tell
                temporary = _own_folder()
                temporary.mkdir(exist_ok=True)  # systems remove what has lain in theirs for days
                _before.enter_context(environment(TMPDIR=str(temporary)))
            unset = {name: usual for name, usual in (("CC", "cc"), ("CXX", "c++")) if os.environ.get(name) == ""}
            _before.enter_context(environment(PATH=os.pathsep.join(folders), LANGUAGE="en", MAX_JOBS=str(jobs()), **unset))
        _within += 1
    try:
        yield
    finally:
        with _tools_lock:
            _within -= 1
            if _within == 0:
                _before.close()


@contextlib.contextmanager
def torchs_builder() -> Iterator[ModuleType]:
    """torch.utils.cpp_extension, which within finds its tools, CUDA and torch's libraries wherever they are."""
    with tools_on_path():
        from torch.utils import cpp_extension

        point_torch_to_cuda()
        quote_torchs_libraries()
        yield cpp_extension
