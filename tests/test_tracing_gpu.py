"""The trace mode's counts against the GPU's own counters, by Nsight Compute."""

import subprocess
from pathlib import Path

import pytest
import torch
from host_build import KERNELS, trace

from labkit import machine, profiling

pytestmark = pytest.mark.gpu
LAUNCHES = 26 * 3 * 4 * 2  # of banks.cu


def test_wavefronts_and_bank_conflicts_of_every_pattern(tmp_path, monkeypatch):
    source, library = KERNELS / "banks.cu", tmp_path / "banks.so"
    sm = machine.gpu()["capability"].replace(".", "")
    subprocess.run([machine.find_nvcc(), "-std=c++20", f"-arch=sm_{sm}", "-shared", "-Xcompiler", "-fPIC", "-o", library,
                    source], check=True)
    counters = {}
    for op in ("ld", "st"):
        counters[f"wavefronts {op}"] = f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum"
        counters[f"conflicts {op}"] = f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum"
    monkeypatch.setattr(profiling, "TIME_LIMIT", 500)
    program = [str(Path(__file__).parent / "every_bank_pattern.py"), str(library), str(LAUNCHES)]
    wrong = {}
    for k, counted in enumerate(profiling.profile(counters, program, LAUNCHES)):
        found, code, _ = trace("banks", "run", {"y": (torch.zeros(1056 * 4), "both")}, k)
        op, does = ("st", "writes") if k // 4 % 2 else ("ld", "reads")
        total = found.total(does, shared=True)
        here = (total.wavefronts, total.conflicts)
        there = (counted[f"wavefronts {op}"], counted[f"conflicts {op}"])
        if code or here != there:
            wrong[k] = here, there
    assert wrong == {}
