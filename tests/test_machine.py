"""labkit.machine on made-up machines: programs on PATH are small scripts."""

import os
from pathlib import Path

import pytest

from labkit import machine


def program(path: Path, script: str) -> Path:
    """An executable shell script at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without CUDA, whatever this one has; returns the folder to put programs into, which is on PATH."""
    folder = tmp_path / "bin of the tests"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CUDA_HOME", "CUDA_PATH", "CXX", "LABKIT_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    real = machine.is_program
    monkeypatch.setattr(machine, "is_program", lambda path: path.is_relative_to(tmp_path) and real(path))
    return folder


def test_the_home_that_the_user_named_comes_before_path(bare, monkeypatch, tmp_path):
    on_path = program(bare / "nvcc", "exit 0")
    assert machine.find_nvcc() == on_path
    named = program(tmp_path / "cuda-99" / "bin" / "nvcc", "exit 0")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda-99"))
    assert machine.find_nvcc() == named


def test_a_named_home_without_nvcc_is_passed_over(bare, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nothing here"))
    on_path = program(bare / "nvcc", "exit 0")
    assert machine.find_nvcc() == on_path


def test_nvcc_is_found_in_the_packages_of_pypi(monkeypatch, tmp_path):
    nvcc = program(tmp_path / "nvidia" / "cu13" / "bin" / "nvcc", "exit 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert nvcc in machine._pypi_programs("nvcc")


def test_a_tool_beside_nvcc_comes_before_path_and_path_before_pypi(bare, monkeypatch, tmp_path):
    packaged = program(tmp_path / "nvidia" / "cu99" / "bin" / "nvdisasm", "exit 0")
    monkeypatch.setattr(machine, "_pypi_nvidia", lambda: [str(tmp_path / "nvidia")])
    assert machine.find_cuda_tool("nvdisasm") == packaged
    on_path = program(bare / "nvdisasm", "exit 0")
    assert machine.find_cuda_tool("nvdisasm") == on_path
    program(tmp_path / "cuda-99" / "bin" / "nvcc", f"echo '#$ TOP={tmp_path}/cuda-99' >&2")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda-99"))
    assert machine.find_cuda_tool("nvdisasm") == on_path  # this toolkit has none
    beside = program(tmp_path / "cuda-99" / "bin" / "nvdisasm", "exit 0")
    assert machine.find_cuda_tool("nvdisasm") == beside
    assert machine.find_cuda_tool("no-such-tool") is None


@pytest.mark.parametrize("place", ["include", "targets/x86_64-linux/include", "targets/sbsa-linux/include"])
def test_cuda_home_holds_the_headers_wherever_the_toolkit_keeps_them(bare, monkeypatch, tmp_path, place):
    home = tmp_path / "cuda-99"
    program(home / "bin" / "nvcc", "echo '#$ TOP=/elsewhere' >&2")
    monkeypatch.setenv("CUDA_PATH", str(home))
    (home / place).mkdir(parents=True)
    for header in ("cuda_runtime.h", "cuda_bf16.h"):
        (home / place / header).touch()
    assert machine.cuda_home() == home and machine.cuda_include() == home / place


def test_cuda_home_behind_a_wrapper_is_the_one_that_nvcc_names(bare, tmp_path):
    (tmp_path / "toolkit" / "bin").mkdir(parents=True)
    program(bare / "nvcc", f"echo '#$ TOP={tmp_path}/toolkit/bin/..' >&2")
    assert machine.cuda_home() == tmp_path / "toolkit"


def test_nvcc_version_is_read_or_none(bare):
    program(bare / "nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
    assert machine.nvcc_version() == "13.0.88"
    program(bare / "nvcc", "exit 1")
    assert machine.nvcc_version() is None


def test_driver_is_the_version_and_not_an_error_message(bare):
    assert machine.driver() is None
    program(bare / "nvidia-smi", "echo 580.159.03; echo 580.159.03")
    assert machine.driver() == "580.159.03"
    program(bare / "nvidia-smi", "echo 'NVIDIA-SMI has failed'")
    assert machine.driver() is None


def test_the_compiler_is_the_one_that_cxx_names(bare, monkeypatch):
    assert machine.find_cxx() is None
    plain, named = program(bare / "c++", "exit 0"), program(bare / "clang++-99", "exit 0")
    assert machine.find_cxx() == plain
    monkeypatch.setenv("CXX", "clang++-99")
    assert machine.find_cxx() == named


def test_a_wrong_backend_is_named(monkeypatch):
    monkeypatch.setenv("LABKIT_BACKEND", "cpu")
    with pytest.raises(ValueError, match="LABKIT_BACKEND is 'cpu'; set it to 'host'"):
        machine.backend()


def test_the_backend_is_cuda_only_with_both_a_gpu_and_nvcc(monkeypatch):
    monkeypatch.delenv("LABKIT_BACKEND", raising=False)
    for sees, nvcc, expected in [(True, "/x/nvcc", "cuda"), (True, None, "host"), (False, "/x/nvcc", "host")]:
        monkeypatch.setattr(machine, "_torch_sees_gpu", lambda sees=sees: sees)
        monkeypatch.setattr(machine, "find_nvcc", lambda nvcc=nvcc: nvcc and Path(nvcc))
        assert machine.backend() == expected
    monkeypatch.setattr(machine, "_torch_sees_gpu", lambda: True)
    monkeypatch.setattr(machine, "find_nvcc", lambda: Path("/x/nvcc"))
    monkeypatch.setenv("LABKIT_BACKEND", "host")
    assert machine.backend() == "host" and machine.device().type == "cpu"


def test_clocks_are_numbers_and_what_a_gpu_does_not_report_is_none(bare, monkeypatch):
    import torch

    class Properties:
        uuid = "1234"

    monkeypatch.setattr(machine, "_torch_sees_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    assert machine.clocks() is None
    program(bare / "nvidia-smi", '[ "$2" = GPU-1234 ] && echo "345, 3201, 1980, 3201, 700.00, [N/A]"')
    assert machine.clocks() == {"sm_mhz": 345, "memory_mhz": 3201, "sm_max_mhz": 1980, "memory_max_mhz": 3201,
                                "power_limit_w": 700, "temperature_c": None}


def test_the_cpu_is_named_with_the_cores_that_are_ours():
    assert machine.cpu().endswith(f", {len(os.sched_getaffinity(0))} cores")


def test_memory_is_what_the_system_has_left_or_the_container(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.free_memory() is None
    machine.MEMINFO.write_text(f"MemTotal: 1 kB\nMemAvailable: {8 * 2**20} kB\n")
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text(f"{3 * 2**30}\n")
    assert machine.free_memory() == 8
    (tmp_path / "memory.max").write_text(f"{4 * 2**30}\n")
    assert machine.free_memory() == 1
    (tmp_path / "memory.stat").write_text(f"active_file 7\ninactive_file {2**30}\n")
    assert machine.free_memory() == 2


def test_an_nvcc_that_was_asked_in_vain_is_asked_again(bare, tmp_path):
    program(bare / "nvcc", "exit 1")
    assert machine.cuda_home() == bare.parent
    (tmp_path / "toolkit").mkdir()
    program(bare / "nvcc", f"echo '#$ TOP={tmp_path}/toolkit' >&2")
    assert machine.cuda_home() == tmp_path / "toolkit"


def test_a_command_that_hangs_fails_or_is_missing_gives_none(bare):
    program(bare / "hangs", "exec /bin/sleep 5")
    program(bare / "fails", "echo text; exit 3")
    assert machine.output("hangs", timeout=0.2) is None
    assert machine.output("fails") is None
    assert machine.output("missing") is None


@pytest.mark.gpu
def test_this_gpu_is_described():
    seen = machine.gpu()
    assert seen["sms"] > 0 and seen["memory_gib"] > 1 and seen["l2_mib"] > 0 and machine.driver()
    assert machine.clocks()["sm_max_mhz"] > 100
    assert (machine.cuda_home() / "bin" / "nvcc").exists()
