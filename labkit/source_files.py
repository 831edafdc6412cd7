"""Source files as they lie about on readers' machines: which of a folder are meant, and their text."""

from __future__ import annotations

import shutil
from pathlib import Path


def under(folder: Path) -> list[Path]:
    """The files in a folder and below, sorted, but for what stands under a name that begins with a dot: locks of editors,
    checkpoints of Jupyter, what macOS keeps beside a file.
    """
    return sorted(path for path in folder.rglob("*") if path.is_file() and
                  not any(part.startswith(".") for part in path.relative_to(folder).parts))


def text(path: Path) -> str:
    """The text of a source file, without the mark that some editors put before it; ValueError, with the line, where it is not
    in UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: the file is not in UTF-8 from here on. Save it in that encoding") from None


def copy(folder: Path, to: Path) -> None:
    """Copies a folder as `under` has it."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns(".*", "__pycache__"))
