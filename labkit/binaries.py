"""`architectures`, `runs_on` and `arch_flags`: what GPU code a binary holds, which GPUs run it, and which flags make it.

The rule, `compatible`, stands in the package that labs/wheel/ builds, which has to do without labkit.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Iterable

from labkit import REPOSITORY, machine, results
from labkit.arguments import named, several
from labkit.report import NO_GPU, keep, show_recorded

_RULE = runpy.run_path(str(REPOSITORY / "labs" / "wheel" / "gelu_op" / "compatibility.py"))
compatible, RUNS, BY_DRIVER, NO_IMAGE = (_RULE[name] for name in ("compatible", "RUNS", "BY_DRIVER", "NO_IMAGE"))

GPUS = {"7.5": "T4", "8.0": "A100", "8.6": "RTX 3090", "8.9": "L4", "9.0": "H100, H200", "10.0": "B200", "12.0": "RTX 5090"}
_CARDS = ", ".join(f"{gpu}: {card}" for gpu, card in GPUS.items())

# A whole program with one kernel: it prints what CUDA says of the launch.
_PROGRAM = r"""
#include <cstdio>
__global__ void answer(int* out) { *out = 42; }
int main() {
    int *out = nullptr, seen = 0;
    cudaMalloc(&out, sizeof(int));
    answer<<<1, 1>>>(out);
    cudaError_t error = cudaGetLastError();
    if (!error) error = cudaMemcpy(&seen, out, sizeof(int), cudaMemcpyDeviceToHost);
    std::puts(cudaGetErrorString(error));
    return error || seen != 42;
}
"""


def architectures(record_name: str, binaries: dict[str, Path | str]) -> list[dict]:
    """Shows and keeps for which GPUs libraries hold code, as cuobjdump lists it.

    record_name: what the table is called in results/. binaries: {label: path of a library or a program, or of a wheel, whose
    libraries are taken together}.

    Returns a row each: the architectures of its machine code (SASS), those of its PTX, and the bytes of the libraries that
    hold them. Without cuobjdump it shows the recorded table and returns []. Raises FileNotFoundError for a path where there
    is nothing.
    """
    title = "Which GPU code a binary holds"
    if machine.find_cuda_tool("cuobjdump") is None:
        return show_recorded([record_name], title, "there is no cuobjdump here")
    named("architectures", "binaries", binaries, "path", lambda path: isinstance(path, (str, Path)))
    rows = []
    for label, path in binaries.items():
        found, size = _held(Path(path))
        rows.append({"binary": label, "SASS": _listed("sm", found), "PTX": _listed("compute", found), "bytes": size})
    results.note("measured", title, f"{len(rows)} binaries")
    keep({record_name: results.table_of(title, rows)})
    return rows


def runs_on(record_name: str, archs: Iterable[str]) -> list[dict]:
    """Shows and keeps which GPUs run what was compiled for each of `archs`, by the rule `compatible`.

    record_name: what the table is called in results/. archs: names such as "sm_80" (SASS) and "compute_80" (PTX).

    Returns a row an architecture with a column a compute capability of GPUS: "runs", "by driver" (it compiles the code at the
    first use) or "no". On a GPU each is also tried: a program with one kernel is compiled for it and started. That table,
    <record_name>_tried, has what came of it and CUDA's own words beside the rule; without a GPU the recorded one is shown
    where a lab was started. Raises ValueError for a name that is no architecture.
    """
    archs = several("runs_on", "archs", archs)
    short = {RUNS: "runs", BY_DRIVER: "by driver", NO_IMAGE: "no"}  # so that seven columns fit the width of a page
    rows = [{"compiled for": arch, **{gpu: short[compatible([arch], gpu)] for gpu in GPUS}} for arch in archs]
    title = "Which GPU runs what"
    results.note("exact", title, f"{len(rows)} architectures on {len(GPUS)} kinds of GPU")
    keep({record_name: results.table_of(title, rows, exact=True)}, f"By the rule, on every machine. {_CARDS}")
    if machine.backend() == "cuda":
        gpu = machine.gpu()
        tried = [_tried(arch, gpu["capability"]) for arch in archs]
        agree = sum(row["the rule"] == row["tried"] for row in tried)
        results.note("check", f"{title}, tried", f"{agree} of {len(tried)} as the rule says")
        keep({f"{record_name}_tried": results.table_of(f"{title}, tried on compute capability {gpu['capability']}", tried)})
    elif results.session().lab is not None:
        show_recorded([f"{record_name}_tried"], f"{title}, tried", NO_GPU)
    return rows


def arch_flags(record_name: str, flags: Iterable[str]) -> list[dict]:
    """Shows and keeps what code nvcc's flags for architectures make, and which GPUs run it, by the rule `compatible`.

    record_name: what the table is called in results/. flags: such as "-arch=sm_80".

    Returns a row a flag: the architectures of the machine code (SASS) and of the PTX that nvcc would put into an object file,
    by its dry run, and of GPUS the compute capabilities that run it, and those whose driver compiles it; the others have no
    kernel image. Without nvcc it shows the recorded table and returns []. Raises
    ValueError, with nvcc's words, for a flag that it does not take.
    """
    title = "What a flag for the architecture makes, and which compute capabilities run it"
    if machine.nvcc_version() is None:
        return show_recorded([record_name], title, "there is no nvcc here")
    rows = []
    for flag in several("arch_flags", "flags", flags):
        found = _planned(flag)
        rows.append({"flag": flag, "SASS": _listed("sm", found), "PTX": _listed("compute", found),
                     **{outcome: ", ".join(gpu for gpu in GPUS if compatible(found, gpu) == outcome) or "none"
                        for outcome in (RUNS, BY_DRIVER)}})
    results.note("exact", title, f"{len(rows)} flags on {len(GPUS)} kinds of GPU")
    keep({record_name: results.table_of(title, rows)}, f"By a dry run of nvcc {machine.nvcc_version()}, and the rule. {_CARDS}")
    return rows


def _planned(flag: str) -> set[str]:
    """{"sm_80", "compute_80"}: what nvcc would compile for, by the command that packs it."""
    done = subprocess.run([machine.find_nvcc(), *flag.split(), "--dryrun", "-c", "-x", "cu", os.devnull, "-o", os.devnull],
                          capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"arch_flags: nvcc does not take {flag!r}: {done.stderr.strip().splitlines()[-1]}")
    kinds = {"elf": "sm", "ptx": "compute"}
    return {f"{kinds[kind]}_{number}" for kind, number in re.findall(r"--image3=kind=(elf|ptx),sm=(\w+)", done.stderr)}


def _held(path: Path) -> tuple[set[str], int]:
    """(architectures in a library or in the libraries of a wheel, their bytes)."""
    if not path.is_file():
        raise FileNotFoundError(f"architectures: there is no file {path}")
    if path.suffix != ".whl":
        return _listed_by_cuobjdump(path), path.stat().st_size
    found, size = set(), 0
    with zipfile.ZipFile(path) as files, tempfile.TemporaryDirectory() as folder:
        for name in files.namelist():
            if name.endswith(".so"):
                library = Path(files.extract(name, folder))
                inside = _listed_by_cuobjdump(library)
                found |= inside
                size += library.stat().st_size if inside else 0
    return found, size


def _listed_by_cuobjdump(library: Path) -> set[str]:
    """{"sm_90", "compute_120", ...}; empty where there is no device code, of which cuobjdump complains."""
    said = "\n".join(machine.output(machine.find_cuda_tool("cuobjdump"), option, library, timeout=60) or ""
                     for option in ("--list-elf", "--list-ptx"))
    kinds = {"cubin": "sm", "ptx": "compute"}
    return {f"{kinds[kind]}_{number}" for number, kind in re.findall(r"\.sm_(\w+)\.(cubin|ptx)\b", said)}


def _listed(kind: str, found: set[str]) -> str:
    of_kind = [name for name in found if name.startswith(f"{kind}_")]
    return ", ".join(sorted(of_kind, key=lambda name: (int(re.sub(r"\D", "", name)), name))) or "none"


def _tried(arch: str, gpu: str) -> dict:
    row = {"compiled for": arch, "the rule": compatible([arch], gpu)}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "answer"
        program.with_suffix(".cu").write_text(_PROGRAM, encoding="utf-8")
        target = f"-gencode=arch={arch.replace('sm_', 'compute_')},code={arch}"
        done = subprocess.run([machine.find_nvcc(), target, "-o", program, program.with_suffix(".cu")],
                              capture_output=True, text=True)
        if done.returncode:
            return {**row, "tried": "not compiled", "CUDA says": done.stderr.strip().splitlines()[-1]}
        # With the driver's compiler off only machine code runs, and what it compiled before and has kept.
        code_alone, launched = _launched(program, CUDA_DISABLE_PTX_JIT="1"), _launched(program)
    said = launched.stdout.strip()
    failed = NO_IMAGE if said.startswith(NO_IMAGE) else "failed"
    tried = failed if launched.returncode else BY_DRIVER if code_alone.returncode else RUNS
    return {**row, "tried": tried, "CUDA says": said}


def _launched(program: Path, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run([program], env={**os.environ, "CUDA_CACHE_DISABLE": "1", **variables}, capture_output=True, text=True,
                          timeout=60)
