"""Machine code: what nvcc makes of the operators, by ptxas's and nvdisasm's word. No GPU is needed."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from labkit import build, cubin, machine
from labkit.cubin import NoCompiler, bare, compile_cubin
from labkit.operator import kernels, listed_versions, python_part, source_path

needs_nvcc = pytest.mark.skipif(machine.find_nvcc() is None, reason="nvcc is not installed")
ARCHITECTURES = {"sm_75", "sm_120", machine.arch() or "sm_120"}  # Turing, Blackwell, and the GPU that is here
# Each thread keeps 64 values at a time, so that 32 registers cannot hold them; 4 x 100 bytes of shared memory.
CROWDED = """
__global__ void crowded(const float* x, float* y, int turns) {
    __shared__ float tile[100];
    float kept[64];
    for (int k = 0; k < 64; ++k) kept[k] = x[k * 32 + threadIdx.x];
    for (int t = 0; t < turns; ++t)
        for (int k = 0; k < 64; ++k) kept[k] = kept[k] * kept[(k + 7) % 64] + kept[(k + 31) % 64];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int k = 0; k < 64; ++k) y[k * 32 + threadIdx.x] = kept[k] + tile[99 - threadIdx.x];
}
"""


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """Nothing is kept yet."""
    monkeypatch.setenv("LABKIT_BUILD", str(tmp_path / "build"))
    return tmp_path / "build"


@needs_nvcc
@pytest.mark.parametrize("name", sorted(path.stem for path in kernels().glob("*/*.cu")))
def test_compiles_from_turing_to_blackwell_and_keeps_every_array_in_registers(name):
    versions, types = listed_versions(source_path(name).read_text()), python_part(name, "reference").DTYPES
    with ThreadPoolExecutor() as pool:  # -lineinfo changes no instruction, and takes a sixth of the time
        for cubin in pool.map(lambda arch: compile_cubin(name, arch=arch, without=["-lineinfo"]), ARCHITECTURES):
            assert "warning" not in cubin.log
            assert len(cubin.kernels) >= len(versions) * len(types)
            assert [k for k in cubin.kernels if k.stack or k.spill_stores or k.spill_loads] == []


@needs_nvcc
def test_too_few_registers_are_reported_as_spills_and_shared_memory_in_bytes(own_folder):
    enough, = compile_cubin("crowded", source=CROWDED).kernels
    few, = compile_cubin("crowded", source=CROWDED, flags=["-maxrregcount=32"]).kernels
    assert enough.name == few.name == "crowded"
    assert enough.registers > 64 and (enough.stack, enough.spill_stores, enough.spill_loads) == (0, 0, 0)
    assert few.registers <= 32 and few.spill_stores > 0 and few.spill_loads > 0 and few.stack >= 4 * (64 - 32)
    assert enough.shared == few.shared == 4 * 100
    assert enough.constant >= 8 + 8 + 4  # the parameters


@needs_nvcc
def test_what_was_made_is_kept_until_an_edit_or_another_flag(own_folder, tmp_path, monkeypatch):
    source = tmp_path / "one.cu"
    source.write_text("__global__ void one(float* y) { y[0] = 1; }")
    first = compile_cubin("one", source=source)
    assert compile_cubin("one", source=source, arch="sm_80").path != first.path
    assert compile_cubin("one", source=source, flags=["-fmad=false"]).path != first.path
    monkeypatch.setattr("labkit.cubin._compile", lambda *given: pytest.fail("compiled again"))
    assert compile_cubin("one", source=source) == first
    monkeypatch.undo()
    monkeypatch.setenv("LABKIT_BUILD", str(own_folder))
    source.write_text("__global__ void one(float* y) { y[0] = 2; }")
    assert compile_cubin("one", source=source).path != first.path


@pytest.mark.skipif(machine.find_nvcc() is None or machine.find_cuda_tool("nvdisasm") is None, reason="needs nvcc and nvdisasm")
def test_machine_code_that_is_the_same_is_disassembled_once(own_folder, tmp_path, monkeypatch):
    source = tmp_path / "one.cu"
    source.write_text("__global__ void one(float* y, float x) { y[0] = y[0] * x + x; }")
    first, same, other = (compile_cubin("one", source=source, flags=flags) for flags in ([], ["-O3"], ["-fmad=false"]))
    run, tools = subprocess.run, []
    monkeypatch.setattr(subprocess, "run", lambda command, **how: tools.append(command[:2]) or run(command, **how))
    plain, optimised, unfused = ([one.text for one in each.code(each.kernels[0])] for each in (first, same, other))
    assert first.path != same.path and plain == optimised != unfused
    assert sum(option == "-c" for _, option in tools) == 2


@pytest.mark.skipif(machine.find_nvcc() is None or machine.find_cuda_tool("nvdisasm") is None, reason="needs nvcc and nvdisasm")
@pytest.mark.parametrize("suffix", [".cu", ".cubin", ".log", ".sass"])
def test_what_is_kept_and_damaged_is_made_again(own_folder, suffix):
    def made():
        cubin._disassembled.cache_clear()  # as in another process
        found = compile_cubin("one", source="__global__ void one(float* y) { y[0] = 1; }")
        return found.path, found.kernels, found.code(found.kernels[0])

    first = made()
    (kept,) = own_folder.rglob(f"*{suffix}")
    size = kept.stat().st_size
    os.truncate(kept, size // 2)
    assert made() == first and kept.stat().st_size > size // 2


@needs_nvcc
def test_a_compile_error_begins_with_file_and_line_and_leaves_nothing(own_folder, tmp_path):
    source = tmp_path / "broken.cu"
    source.write_text("\n\n__global__ void broken() { no_such_name = 1; }\n")
    for _ in range(2):
        with pytest.raises(build.BuildError) as failed:
            compile_cubin("broken", source=source)
        first = str(failed.value).splitlines()[0]
        assert "broken.cu(3)" in first and "no_such_name" in first


@needs_nvcc
def test_a_kernel_is_chosen_by_words_of_its_name(own_folder):
    cubin = compile_cubin("copy", version=1)
    assert cubin.kernel("v1:: bfloat16").name == "v1::kernel<1, __nv_bfloat16>"
    assert cubin.kernel("float>").name == "v1::kernel<1, float>"
    with pytest.raises(ValueError, match=r"'v1::'; .* and 4 kernels do:\n(.*\n)*  v1::kernel<1, double>"):
        cubin.kernel("v1::")
    with pytest.raises(ValueError, match=r"'int8'; .* and none does:\n(.*\n)*  v1::kernel<1, double>"):
        cubin.kernel("int8")


def test_a_function_among_the_parameters_of_a_name_goes_with_them():
    assert bare("a::k<int>(void (*)(int), long)") == "a::k<int>"
    assert bare("k<(a::B)2, float>(float*)") == "k<(a::B)2, float>"
    assert bare("main") == "main"


def test_without_a_compiler_that_works_it_says_which_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "find_nvcc", lambda: None)
    with pytest.raises(NoCompiler, match="there is no nvcc here"):
        compile_cubin("gelu", 1)
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\nexit 1\n")
    nvcc.chmod(0o755)
    monkeypatch.setattr(machine, "find_nvcc", lambda: nvcc)
    with pytest.raises(NoCompiler, match=f"{nvcc} does not work"):
        compile_cubin("gelu", 1)


def test_a_host_compiler_that_nvcc_does_not_take_is_no_fault_of_the_source(own_folder, monkeypatch, tmp_path):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\n[ $1 = --version ] && echo V13.0.88 && exit\n"
                    "echo 'host_config.h: error: #error -- unsupported GNU version! gcc versions later' >&2; exit 1\n")
    nvcc.chmod(0o755)
    monkeypatch.setattr(machine, "find_nvcc", lambda: nvcc)
    with pytest.raises(NoCompiler, match="takes no C\\+\\+ compiler that is here: unsupported GNU version! gcc"):
        compile_cubin("gelu", 1)


def test_wrong_names_say_what_there_is():
    with pytest.raises(FileNotFoundError, match="no operator 'relu'"):
        compile_cubin("relu")
    with pytest.raises(ValueError, match="version is 99; gelu.cu lists 1, 2"):
        compile_cubin("gelu", 99)
    with pytest.raises(TypeError, match=r"flags is '-fmad=false -O1'; it has to be a list: \['-fmad=false', '-O1'\]"):
        compile_cubin("gelu", 7, flags="-fmad=false -O1")
    with pytest.raises(ValueError, match="arch is '9.0'; it is a name such as 'sm_90'"):
        compile_cubin("gelu", arch="9.0")


@needs_nvcc
def test_the_flags_are_those_that_torch_gives_a_build(own_folder):
    """They rule out the arithmetic operators of half: code that passes here passes in `load`."""
    with pytest.raises(build.BuildError, match="no operator"):
        compile_cubin("half", source="#include <cuda_fp16.h>\n__global__ void k(__half* y) { y[0] = y[0] + y[1]; }")
