"""What a failed build says: the compiler's first error on top, with file and line, then what to do about it."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from labkit import REPOSITORY, host

_OWN_FOLDER = "name a folder that is yours in LABKIT_BUILD, such as LABKIT_BUILD=$HOME/labkit-build"
NO_PROGRAMS = "name a folder in LABKIT_BUILD from whose disk programs may be run: this one is mounted noexec"
_SPACE = ("free some disk where builds and the compilers' temporary files go, or name folders on another one: LABKIT_BUILD for "
          "the former, TMPDIR for the latter")
_DAMAGED = ("remove what earlier builds have left, of which some is damaged: python3 -m labkit clean; and where LABKIT_BUILD "
            "is set, what is in that folder")
_MEMORY = "close other programs, or let one compiler run at a time: MAX_JOBS=1"

# What compilers and the system say, and what to do about it.
_REMEDIES = {
    "failed to map segment": NO_PROGRAMS,
    "unsupported GNU version": "install an older g++, and name it in CC and CXX, such as CC=g++-13 CXX=g++-13",
    "unsupported clang version": "install an older clang, and name it in CC and CXX, such as CC=clang-18",
    "reported success and made no": "name one C++ compiler in CXX, such as CXX=g++-12, or unset CXX",
    "file not recognized": _DAMAGED, "unknown file type": _DAMAGED, "reading precompiled header": _DAMAGED,
    "No space left on device": _SPACE, "Disk quota exceeded": _SPACE,
    "Could not open output file": "name a folder that is yours in TMPDIR",
    "Failed to preprocess host compiler properties": "mend the C++ compiler, which nvcc calls",
    "Permission denied": _OWN_FOLDER, "Read-only file system": _OWN_FOLDER, "No locks available": _OWN_FOLDER,
    "[Errno 1] ": _OWN_FOLDER, "[Errno 20] ": _OWN_FOLDER, "[Errno 2] No such file or directory: '/": _OWN_FOLDER,
    "signal 9": _MEMORY, "Killed signal": _MEMORY, "\nKilled\n": _MEMORY, "out of memory": _MEMORY, "memory exhausted": _MEMORY,
    "Cannot allocate memory": _MEMORY,
    "Unsupported gpu architecture": "set CUDA_HOME to a CUDA toolkit that lists this GPU in `nvcc --list-gpu-arch`, and use "
                                    "a torch for its CUDA; or set LABKIT_BACKEND=host",
}
_ERROR = re.compile(r"\berror\b\s*:|\berror #|fatal|No space left|undefined (reference|symbol)|died due to signal|"
                    r"\bld: cannot|file not recognized|^Killed$|memory exhausted")


class BuildError(RuntimeError):
    """What `load` could not build. The message begins with the compiler's first error, file, line and words, or with what
    is missing; a line with what to do follows where that is known.
    """


def first_error(output: str, log: Path) -> str:
    """A BuildError's message: the compiler's first errors, and where the rest is, in `log`, which is written."""
    explained = host.explain(output)
    errors = list(dict.fromkeys(line.strip() for line in explained.splitlines() if _ERROR.search(line)))
    # The compiler's advice to override its own check is not ours, and cut off.
    errors = [line.partition(" The nvcc flag '-allow")[0] for line in errors]
    first = "\n".join(errors[:3]) if errors else explained.strip()[-2000:]
    with contextlib.suppress(OSError):  # on a full disk the message is all that there is
        log.write_text(output, encoding="utf-8", errors="replace")
        return f"{first}{remedy(output)}\n(the compiler's whole output: {short(log)})"
    return f"{first}{remedy(output)}"


def advice(words: str) -> str:
    """What to do about an error of these words; nothing where that is not known."""
    return next((advice for said, advice in _REMEDIES.items() if said in words), "")


def remedy(words: str) -> str:
    """The same as a line of its own."""
    return f"\nTo mend it: {told}." if (told := advice(words)) else ""


def of_this_machine(words: str) -> bool:
    """Whether a BuildError's words are about tools, disk or memory, and not about a source."""
    return "To mend it: " in words or "tracing needs g++" in words


def without_folders(words: str) -> str:
    """The text with this machine's files named without their folders; relative paths stay."""
    return re.sub(r"(?<![\w.…])/\S*/(?=[\w.+-]+)", "", words)


def short(path: Path) -> str:
    """A path as a reader finds it: from the repository, where it lies in there."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(REPOSITORY))
    return str(path)
