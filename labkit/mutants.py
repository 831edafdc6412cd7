"""`mutant`: an operator with one fault put into its kernel, to see what finds it."""

from __future__ import annotations

import hashlib
import shutil

from labkit import listing
from labkit.build import BUILD_ROOT, load
from labkit.operator import Operator, kernels, kernels_of, source_path


def mutant(name: str, version: int, old: str, new: str, backend: str = "host") -> Operator:
    """Builds a copy of an operator in which one version has `new` where `old` stood, and loads it.

    name: a folder of kernels/. version: whose text is changed. old: a text that stands there exactly once. backend: as
    for `load`; "host" unless given, since a faulty kernel can leave a GPU unusable for the rest of the process.
    The operator can be given to `check`, `trace` and `schedules`. The kernel itself is left as it is.
    Raises FileNotFoundError and ValueError as `show` does, and ValueError where `old` does not stand there once.
    """
    source, text = source_path(name), listing.source(name, version)
    if text.count(old) != 1:
        raise ValueError(f"mutant: {old!r} stands {text.count(old)} times in version {version} of {source.name}; it has to be "
                         "once, so that it is clear what is changed. Give more of the text around it")
    whole = source.read_text(encoding="utf-8")
    changed = whole.replace(text, text.replace(old, new), 1)
    folder = BUILD_ROOT / "mutants" / hashlib.sha256(f"{kernels()}{name}{changed}".encode()).hexdigest()[:12]
    for part in (name, "include"):
        shutil.copytree(kernels() / part, folder / part, dirs_exist_ok=True)
    (folder / name / source.name).write_text(changed, encoding="utf-8")
    with kernels_of(folder):
        return load(name, backend=backend)
