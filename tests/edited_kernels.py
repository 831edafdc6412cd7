"""An operator from a copy of kernels/ in which one place is changed, for tests of what finds faults."""

import shutil

import labkit
from labkit import operator


def edited(tmp_path, monkeypatch, name, version, file, there, instead):
    """One version of the operator on the CPU, with `instead` where `there` stood in `file`, a path in kernels/.

    In the .cu file that is the first place from the version's namespace on, else the first of all. On a GPU a mutant that
    faults would poison this process's CUDA context, and every test after it.
    """
    kernels = tmp_path / "kernels"
    shutil.copytree(operator.kernels(), kernels)
    path = kernels / file
    text = path.read_text()
    place = text.find(there, max(text.find(f"namespace v{version} {{"), 0))
    place = place if place >= 0 else text.find(there)
    assert place >= 0, f"the edit does not fit {file} any more: it lacks {there!r}"
    path.write_text(text[:place] + instead + text[place + len(there):])
    monkeypatch.setenv("LABKIT_KERNELS", str(kernels))
    monkeypatch.setenv("LABKIT_BACKEND", "host")
    return labkit.load(name, version=version)
