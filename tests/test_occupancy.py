"""How many blocks an SM holds: the arithmetic against known values and NVIDIA's calculator; what the driver is asked."""

import ctypes
import subprocess

import pytest
import torch

import labkit
from labkit import machine, occupancy, report, results
from labkit.occupancy import blocks_by_limit

COMMON = {"threads_a_warp": 32, "threads_a_block": 1024, "registers_an_sm": 65536}
SM = {
    "T4": COMMON | {"capability": "7.5", "threads_an_sm": 1024, "blocks_an_sm": 16, "shared_bytes_a_block": 65536,
                    "shared_bytes_an_sm": 65536, "shared_bytes_reserved_a_block": 0},
    "A100": COMMON | {"capability": "8.0", "threads_an_sm": 2048, "blocks_an_sm": 32, "shared_bytes_a_block": 166912,
                      "shared_bytes_an_sm": 167936, "shared_bytes_reserved_a_block": 1024},
    "H200": COMMON | {"capability": "9.0", "threads_an_sm": 2048, "blocks_an_sm": 32, "shared_bytes_a_block": 232448,
                      "shared_bytes_an_sm": 233472, "shared_bytes_reserved_a_block": 1024},
}


@pytest.mark.parametrize("sm, threads, registers, shared, blocks, limited_by, share", [
    ("H200", 256, 32, 0, 8, "warps, registers", 1.0),  # 64 warps, 65,536 registers: both are used up
    ("H200", 32, 16, 0, 32, "blocks", 0.5),            # the article's block: 32 warps of 64
    ("H200", 32, 64, 0, 32, "blocks, registers", 0.5),
    ("H200", 100, 16, 0, 16, "warps", 1.0),            # 100 threads take 4 warps
    ("H200", 256, 33, 0, 6, "registers", 0.75),        # 33 registers count as 40: 48 warps
    ("H200", 96, 72, 0, 9, "registers", 27 / 64),      # 7 warps a partition, 28 in all: 9 blocks of 3
    ("H200", 128, 32, 49152, 4, "shared memory", 0.25),  # 48 KiB and the reserved one: 49 of 228 KiB
    ("H200", 1024, 64, 0, 1, "registers", 0.5),
    ("H200", 1024, 65, 0, 0, "registers", 0.0),        # does not start
    ("H200", 32, 16, 232449, 0, "shared memory", 0.0),
    ("T4", 32, 16, 0, 16, "blocks", 0.5),
    ("T4", 256, 32, 0, 4, "warps", 1.0),
    ("T4", 64, 16, 4097, 15, "shared memory", 30 / 32),  # 4,352 bytes a block, none reserved
])
def test_known_values(sm, threads, registers, shared, blocks, limited_by, share):
    found = blocks_by_limit(SM[sm], threads, registers, shared)
    assert (found["blocks an SM"], found["limited by"]) == (blocks, limited_by)
    assert found["occupancy"] == pytest.approx(share)


ORACLE = """
#include <cuda_occupancy.h>
#include <climits>
#include <cstdio>
int main(int, char** text) {
    long v[8];
    for (int k = 0; k < 8; ++k) sscanf(text[k + 1], "%ld", &v[k]);
    cudaOccDeviceProp sm;
    sm.computeMajor = v[0], sm.computeMinor = v[1], sm.maxThreadsPerBlock = 1024, sm.maxThreadsPerMultiprocessor = v[2];
    sm.regsPerBlock = sm.regsPerMultiprocessor = 65536, sm.warpSize = 32, sm.sharedMemPerBlock = 49152, sm.numSms = 1;
    sm.sharedMemPerMultiprocessor = v[3], sm.sharedMemPerBlockOptin = v[4], sm.reservedSharedMemPerBlock = v[5];
    int threads, registers, shared;
    while (scanf("%d %d %d", &threads, &registers, &shared) == 3) {
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = INT_MAX, kernel.numRegs = registers, kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = v[4];
        cudaOccDeviceState state;
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult found{};
        if (cudaOccMaxActiveBlocksPerMultiprocessor(&found, &sm, &kernel, &state, threads, shared)) return 1;
        printf("%d\\n", found.activeBlocksPerMultiprocessor);
    }
}
"""


@pytest.mark.parametrize("name", SM)
def test_nvidias_calculator_says_the_same(name, tmp_path):
    home = machine.cuda_home()
    include = next((path for path in (home.glob("**/include") if home else ()) if (path / "cuda_occupancy.h").exists()), None)
    if include is None:
        pytest.skip("the CUDA toolkit's cuda_occupancy.h is not installed")
    sm = SM[name]
    (tmp_path / "oracle.cpp").write_text(ORACLE)
    subprocess.run([machine.find_cxx(), "-w", "-I", include, tmp_path / "oracle.cpp", "-o", tmp_path / "oracle"], check=True)
    cases = [(threads, registers, shared) for threads in (1, 32, 33, 64, 96, 100, 128, 192, 256, 384, 512, 768, 1000, 1024)
             for registers in (8, 10, 16, 17, 24, 32, 33, 40, 48, 63, 64, 65, 72, 80, 96, 128, 129, 168, 200, 255)
             for shared in (0, 1, 128, 1023, 1024, 4097, 16384, 33000, 49152, 65536, 100000, 200000, 232448)
             if shared <= sm["shared_bytes_a_block"]]
    capability = sm["capability"].split(".")
    arguments = [*capability, sm["threads_an_sm"], sm["shared_bytes_an_sm"], sm["shared_bytes_a_block"],
                 sm["shared_bytes_reserved_a_block"], 0, 0]
    done = subprocess.run([tmp_path / "oracle", *map(str, arguments)], capture_output=True, text=True, check=True,
                          input="".join("%d %d %d\n" % case for case in cases))
    said = [int(line) for line in done.stdout.split()]
    ours = [blocks_by_limit(sm, *case)["blocks an SM"] for case in cases]
    assert [(case, a, b) for case, a, b in zip(cases, ours, said, strict=True) if a != b] == []


@pytest.mark.parametrize("arguments, says", [
    ((0, 32, 0), "threads is 0; a block has 1 to 1024"), ((1025, 32, 0), "threads is 1025"), ((32, -1, 0), "registers is -1"),
    ((32, 1, -5), "shared_bytes -5")])
def test_what_no_kernel_has_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        blocks_by_limit(SM["H200"], *arguments)


# ---- what the driver is asked ----

ANSWERS = {1: 1024, 10: 32, 13: 1980000, 16: 132, 39: 2048, 81: 233472, 82: 65536, 97: 232448, 106: 32, 111: 1024}


class Driver:
    """libcuda with one device, number 3."""

    def __init__(self, refuses=None):
        self.refuses = refuses

    def cuInit(self, flags):
        return 0

    def cuDeviceGet(self, device, ordinal):
        ctypes.cast(device, ctypes.POINTER(ctypes.c_int))[0] = ordinal + 2
        return 0

    def cuDeviceGetAttribute(self, value, attribute, device):
        assert device.value == 3
        ctypes.cast(value, ctypes.POINTER(ctypes.c_int))[0] = ANSWERS[attribute]
        return 1 if attribute == self.refuses else 0


@pytest.fixture
def h200(monkeypatch, session):
    monkeypatch.setattr(machine, "gpu", lambda: {"name": "NVIDIA H200", "capability": "9.0"})
    monkeypatch.setattr(machine, "backend", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver() if name == "libcuda.so.1" else None)
    monkeypatch.setattr(report, "here", lambda: "NVIDIA H200")


def test_limits_are_those_that_the_driver_gives(h200):
    found = occupancy.limits()
    assert {key: found[key] for key in SM["H200"]} == SM["H200"]
    assert (found["name"], found["sms"], found["clock_khz"]) == ("NVIDIA H200", 132, 1980000)


def test_a_driver_that_refuses_is_reported(h200, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(refuses=106))
    with pytest.raises(RuntimeError, match="limits: the CUDA driver's cuDeviceGetAttribute returned error 1"):
        occupancy.limits()


def test_without_a_gpu_there_are_no_limits(monkeypatch):
    monkeypatch.setattr(machine, "gpu", lambda: None)
    with pytest.raises(RuntimeError, match="limits: torch sees no GPU here"):
        occupancy.limits()


def test_the_limits_of_an_sm_are_shown_and_kept(h200, session, capsys):
    rows = {row["limit"]: row["value"] for row in labkit.sm_limits("sm")}
    assert rows["blocks"] == 32 and rows["warps"] == 64 and rows["shared memory, KiB"] == 228 and rows["clock, MHz"] == 1980
    assert session().tables["sm"]["rows"][0] == {"limit": "threads a warp", "value": 32}
    assert "What one SM holds" in capsys.readouterr().out


def test_without_a_gpu_the_recorded_limits_are_shown(h200, session, monkeypatch, capsys):
    labkit.sm_limits("sm")
    monkeypatch.setattr(results.sources, "sources_hash", lambda name: "0" * 12)
    monkeypatch.setattr(machine, "gpu", lambda: {"name": "NVIDIA H200", "capability": "9.0", "sms": 132, "memory_gib": 140.0,
                                                 "l2_mib": 50.0, "slug": "nvidia-h200"})
    monkeypatch.setattr(machine, "clocks", lambda: None)
    results.record()
    monkeypatch.setattr(machine, "backend", lambda: "host")
    capsys.readouterr()
    assert labkit.sm_limits("sm") == []
    assert "Recorded on NVIDIA H200" in capsys.readouterr().out
    assert labkit.sm_limits("another") == []
    assert "there is no GPU here, and nothing is recorded" in capsys.readouterr().out


@pytest.mark.gpu
def test_cuda_counts_the_same_blocks_for_every_geometry():
    geometry, sm = labkit.load("geometry"), occupancy.limits()
    for dtype in geometry.reference.DTYPES:
        one = torch.empty(1, dtype=dtype, device="cuda")
        for version in geometry.versions:
            for threads in (1, 31, 32, 33, 64, 96, 100, 128, 256, 320, 512, 1000, 1024):
                blocks, registers, shared = geometry.ops.occupancy(one, version, threads)
                assert blocks_by_limit(sm, threads, registers, shared)["blocks an SM"] == blocks, (dtype, version, threads)
