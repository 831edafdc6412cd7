"""The trace mode's counts against the GPU's own counters, by Nsight Compute."""

import subprocess
from pathlib import Path

import pytest
import torch
from host_build import KERNELS, trace

from labkit import machine, profiling

pytestmark = pytest.mark.gpu


def counted(name, launches, arrays, n, counters, folder):
    """The counters of every launch of NAME.cu, built by nvcc for this GPU."""
    library = folder / f"{name}.so"
    sm = machine.gpu()["capability"].replace(".", "")
    subprocess.run([machine.find_nvcc(), "-std=c++20", f"-arch=sm_{sm}", "-shared", "-Xcompiler", "-fPIC", "-o", library,
                    KERNELS / f"{name}.cu"], check=True)
    torch.save(list(arrays), folder / "arrays.pt")
    program = [str(Path(__file__).parent / "every_pattern.py"), str(library), str(launches), str(folder / "arrays.pt"), str(n)]
    return profiling.profile(counters, program, launches)


def test_wavefronts_and_bank_conflicts_of_every_pattern(tmp_path, monkeypatch):
    monkeypatch.setattr(profiling, "TIME_LIMIT", 500)
    launches, y = 26 * 3 * 4 * 2, torch.zeros(1056 * 4)
    counters = {}
    for op in ("ld", "st"):
        counters[f"wavefronts {op}"] = f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum"
        counters[f"conflicts {op}"] = f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum"
    wrong = {}
    for k, gpu in enumerate(counted("banks", launches, [y], -1, counters, tmp_path)):
        found, code, _ = trace("banks", "run", {"y": (y, "both")}, k)
        op, does = ("st", "writes") if k // 4 % 2 else ("ld", "reads")
        total = found.total(does, shared=True)
        here, there = (total.wavefronts, total.conflicts), (gpu[f"wavefronts {op}"], gpu[f"conflicts {op}"])
        if code or here != there:
            wrong[k] = here, there
    assert wrong == {}


def branches(n):
    generator = torch.Generator().manual_seed(3)
    f = torch.randint(-2**20, 2**20, (n,), generator=generator, dtype=torch.int32)
    return {"x": (torch.ones(n + 64), "input"), "f": (f, "input"), "y": (torch.zeros(5 * n), "both")}


def test_lanes_that_part_meet_again_where_nvcc_lets_them(tmp_path):
    n, names = 1024, ("border", "own_length", "some_iterations", "leaves_early", "skips", "returns_inside", "either_condition",
                      "nested", "cases", "calls")
    counters = {f"{what} {op}": f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum" for what in ("requests", "sectors")
                for op in ("ld", "st")}
    arrays = branches(n)
    wrong = {}
    for k, gpu in enumerate(counted("branches", len(names), [t for t, _ in arrays.values()], n, counters, tmp_path)):
        found, code, _ = trace("branches", "run", arrays, n, k)
        reads, writes = found.total("reads"), found.total("writes")
        here = {"requests ld": reads.requests, "sectors ld": reads.sectors, "requests st": writes.requests,
                "sectors st": writes.sectors}
        if code or here != gpu:
            wrong[names[k]] = here, gpu
    assert wrong == {}
