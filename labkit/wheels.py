"""`wheel` and `try_wheels`: an operator packaged ahead of time, and whether the package works elsewhere.

The recipe is labs/wheel/, an ordinary project of setuptools that pip builds; `wheel` calls pip. What `try_wheels` starts is
labs/wheel/try_wheel.py, in a process that finds neither a compiler nor this repository.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Iterable

from labkit import REPOSITORY, build, results
from labkit.arguments import several
from labkit.environment import environment
from labkit.report import keep

PACKAGE = "gelu_op"  # what try_wheel.py tries
# In ULP of bfloat16: half of one is the rounding of the store; a tenth more for the arithmetic, in float32, before it.
ALLOWED = 0.6


def wheel(name: str = "gelu", arch: str | None = None) -> Path:
    """Packages an operator with its compiled libraries, by the recipe labs/*/ that holds a package <name>_op.

    name: the operator, as for `load`. arch: the GPUs to compile for, in the syntax of TORCH_CUDA_ARCH_LIST, such as
    "9.0;12.0+PTX"; by default what that variable says, or else Turing to Blackwell as far as nvcc knows them, and PTX of
    the newest.

    Prints one line and returns the wheel's path, in build/wheels/. The file's name says what it was built with, and has a
    hash over all that went into it, so that only a wheel of the same content is replaced. Raises FileNotFoundError
    where there is no such recipe and BuildError where it cannot be built.
    """
    start = time.perf_counter()
    recipe = _recipe(name)
    folder().mkdir(parents=True, exist_ok=True)
    given = {"TORCH_CUDA_ARCH_LIST": arch} if arch else {}
    with tempfile.TemporaryDirectory(dir=folder()) as made, environment(**given):
        done = _run(sys.executable, "-m", "pip", "wheel", recipe, "--no-build-isolation", "--check-build-dependencies",
                    "--no-deps", "-w", made)
        if done.returncode:
            raise build.BuildError(f"{name}_op: {_why(done.stdout)}")
        (new,) = Path(made).glob("*.whl")
        kept = folder() / new.name
        new.replace(kept)
    seconds, built = time.perf_counter() - start, built_with(kept, f"{name}_op")
    targets = ", ".join([*built["sass"], *(f"PTX of {ptx}" for ptx in built["ptx"]), "the CPU"])
    if not built["cuda"]:
        targets = "the CPU alone, since there is no nvcc here"
    elif not arch and os.environ.get("TORCH_CUDA_ARCH_LIST"):
        targets += f", as TORCH_CUDA_ARCH_LIST={os.environ['TORCH_CUDA_ARCH_LIST']} asks"
    print(f"{name}_op: version {built['version']} packaged for {targets}; {kept.stat().st_size / 1e6:.1f} MB after "
          f"{seconds:.1f} s, in {build.short(kept)}")
    results.note("built", f"{name}_op, {targets}", f"{seconds:.1f} s from source to wheel")
    return kept


def try_wheels(record_name: str, wheels: Iterable[Path | str] | None = None,
               pythons: Iterable[Path | str] | None = None) -> list[dict]:
    """Installs wheels of GeLU with pip and runs them, each with each Python, in new processes without a compiler.

    record_name: what the table is called in results/. wheels: their paths; by default all that lie in build/wheels/, made
    there or carried there from elsewhere. pythons: of other environments, beside this one; the environment variable
    LABKIT_PYTHONS may name more, separated as in PATH. Each needs torch.

    A run imports the package, compares gelu and its gradient with float64 for every bfloat16 number from -8 to 8, and
    calls torch.library.opcheck. Returns a row a run, which is also shown and kept: what the wheel was built with;
    what ran it; where; the largest error in ULP of bfloat16; seconds of import and first call; and "right", or the error's last
    line. Raises FileNotFoundError where there is no wheel or no such Python, ValueError for a wheel of another recipe.
    """
    kept = sorted(folder().glob(f"{PACKAGE}-*.whl"))
    wheels = kept if wheels is None else [Path(path) for path in several("try_wheels", "wheels", wheels)]
    if not wheels:
        raise FileNotFoundError(f'try_wheels: no wheel of {PACKAGE} in {folder()}; make one with labkit.wheel("gelu")')
    named = filter(None, os.environ.get("LABKIT_PYTHONS", "").split(os.pathsep))
    for path in wheels:
        if not path.is_file():
            raise FileNotFoundError(f"try_wheels: there is no wheel {path}")
    others = [Path(path).absolute() for path in (*(pythons or []), *named)]
    for path in others:
        if not path.is_file():
            raise FileNotFoundError(f"try_wheels: no Python at {path}; name one as in .venv/bin/python")
    rows = [_try(path, python) for path in wheels for python in (Path(sys.executable), *others)]
    for row in rows:
        results.note("check", f"{PACKAGE} built with {row['built with']}, run by {row['run by']}", row["outcome"])
    keep({record_name: results.table_of("One wheel in several environments", rows)})
    return rows


def folder() -> Path:
    """Where wheels are kept."""
    return build.build_root() / "wheels"


def built_with(wheel: Path, package: str = PACKAGE) -> dict:
    """What a wheel says of its build (its built.json); ValueError for one that holds no such package, or is damaged."""
    if not zipfile.is_zipfile(wheel):
        raise ValueError(f"{wheel} is damaged, or no wheel; make it anew with labkit.wheel")
    with zipfile.ZipFile(wheel) as files:
        if f"{package}/built.json" not in files.namelist():
            raise ValueError(f"{wheel.name} holds no {package}/built.json; it takes wheels of {package} that "
                             "labkit.wheel has made")
        return json.loads(files.read(f"{package}/built.json"))


def _recipe(name: str) -> Path:
    found = {path.parent.name.removesuffix("_op"): path.parent.parent
             for path in sorted(REPOSITORY.glob("labs/*/*_op/__init__.py"))}
    if name not in found:
        raise FileNotFoundError(f"wheel: no recipe for {name!r} (there is one for: {', '.join(found)}); copy labs/wheel to a "
                                f"folder beside it, with the package {name}_op in it")
    return found[name]


def _try(wheel: Path, python: Path) -> dict:
    built = built_with(wheel)
    gpus = " to ".join(dict.fromkeys((built["sass"][0], built["sass"][-1]))) if built["sass"] else None
    row = {"built with": _said(torch=built["torch"], CUDA=built["cuda"], Python=built["python"], GPUs=gpus),
           "run by": "", "on": "",
           "largest error, ULP": None, "seconds": None, "outcome": ""}
    with tempfile.TemporaryDirectory() as place:
        # pip runs in the other Python, so that it is that one which accepts the wheel.
        installed = _run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--target",
                         place, wheel)
        if installed.returncode:
            return {**row, "run by": build.short(python), "outcome": _last_line(installed.stdout)}
        shutil.copy(REPOSITORY / "labs" / "wheel" / "try_wheel.py", place)
        alone = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CUDA_HOME", "CUDA_PATH")}
        done = subprocess.run([python, "try_wheel.py"], cwd=place, env={**alone, "PATH": place}, capture_output=True,
                              text=True)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if said:
        row |= {"run by": _said(torch=said[0]["torch"], Python=said[0]["python"]), "on": said[0]["device"]}
    if done.returncode:
        killed = f"ended by signal {-done.returncode}" if done.returncode < 0 else None
        return {**row, "run by": row["run by"] or build.short(python), "outcome": killed or _last_line(done.stderr)}
    error = max(said[1]["forward"], said[1]["gradient"])
    return {**row, "largest error, ULP": round(error, 3), "seconds": round(said[1]["seconds"], 3),
            "outcome": "right" if error <= ALLOWED else f"wrong: an error of more than {ALLOWED} ULP"}


def _said(**versions: str | None) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)


def _run(*command: object) -> subprocess.CompletedProcess:
    return subprocess.run([*map(str, command)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          encoding="utf-8", errors="replace")


def _last_line(output: str) -> str:
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "it printed nothing")


def _why(output: str) -> str:
    """What the build lacks, with the remedy; or the compiler's first errors in what pip printed; or the exception."""
    lines = [line.strip() for line in output.splitlines()]
    if lacking := [line for line in lines if line.startswith("ERROR: Some build dependencies")]:
        remedy = f"Install them: {Path(sys.executable).name} -m pip install -r requirements.txt"
        return f"{lacking[0].removeprefix('ERROR: ')} {remedy}"
    refused = [line for line in lines if re.search(r"\.(cu|cuh|cpp|h)\b.*\berror\b|^nvcc fatal", line)][:3]
    raised = [line for line in lines if re.match(r"(\w+Error|SystemExit)\b", line)][-1:]
    return "\n".join(refused or raised or lines[-10:])
