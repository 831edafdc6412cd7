"""The ways from source to a launch that `ladder` times; each runs in a process of its own.

    python -m labkit.rungs NAME FOLDER    builds in FOLDER, launches once, prints {"import": s, "launch": s} as JSON

All compile GeLU of bfloat16: the CUDA C++ ones the kernel of labs/builds/gelu_one.cuh, Triton and torch.compile their own.
A way is cold in an empty FOLDER and warm in one that it has been in: everything that it keeps, it keeps there.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

import torch

from labkit import REPOSITORY, build, host, machine, toolchain
from labkit.operator import python_part

SOURCES = REPOSITORY / "labs" / "builds"
INCLUDE = (SOURCES, REPOSITORY / "kernels" / "include", REPOSITORY / "kernels" / "gelu")
NVRTC_HEADERS = REPOSITORY / "kernels" / "nvrtc"
ELEMENTS = 1 << 20
THREADS, VECTOR = 128, 8  # of gelu_one's launch

Function = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Rung:
    """A way from source to a launch.

    make: builds in a folder and returns the function y = gelu(x). imports: the modules it needs beside torch.
    needs: what has to be installed beside torch. gives_up: what an operator registered with torch.library has and it has not.
    """

    make: Callable[[Path], Function]
    imports: tuple[str, ...]
    needs: str
    gives_up: str


# -- torch's builder ----------------------------------------------------------------------------------------

def _load(folder: Path, *sources: str, python: bool) -> object:
    """torch.utils.cpp_extension.load of files in labs/builds; the module, or None for a library of operators."""
    cuda = machine.backend() == "cuda"
    include = list(map(str, INCLUDE))
    flags, cuda_flags = _flags(stable="stable.cpp" in sources)
    paths = [SOURCES / source for source in sources]
    if not cuda:
        paths[0] = host.transform_into(folder, paths[0], include)
        include = [str(folder), str(host.INCLUDE_DIR), *include]
    with toolchain.torchs_builder() as cpp_extension:
        return cpp_extension.load("builds_" + paths[-1].stem, [str(path) for path in paths], extra_cflags=flags,
                                  extra_cuda_cflags=[*cuda_flags, *(["-DUSE_CUDA"] if cuda else [])],
                                  extra_include_paths=include, build_directory=str(folder), with_cuda=cuda,
                                  is_python_module=python)


def _all_in_one(folder: Path) -> Function:
    return _load(folder, "all_in_one.cu", python=True).gelu_one


def _extension(folder: Path) -> Function:
    return _load(folder, "gelu_one.cu", "extension.cpp", python=True).gelu_one


def _aten(folder: Path) -> Function:
    _load(folder, "gelu_one.cu", "aten.cpp", python=False)
    return torch.ops.builds_aten.gelu_one


def _stable(folder: Path) -> Function:
    _load(folder, "gelu_one.cu", "stable.cpp", python=False)
    return torch.ops.builds_stable.gelu_one


def _inline(folder: Path) -> Function:
    # The texts are what the files of the other ways hold; torch puts torch/extension.h and torch/types.h before them.
    flags, cuda_flags = _flags()
    with toolchain.torchs_builder() as cpp_extension:
        return cpp_extension.load_inline(
            "builds_inline", ['#include "binding.h"'], ['#include "gelu_one.cu"'], functions=["gelu_one_of"],
            extra_cflags=flags, extra_cuda_cflags=cuda_flags,
            extra_include_paths=list(map(str, INCLUDE)), build_directory=str(folder),
            with_cuda=True).gelu_one_of


def _flags(stable: bool = False) -> tuple[list[str], list[str]]:
    """labkit's own flags for a build on this machine; with `stable`, those of torch's stable ABI, which bar other headers."""
    flags, cuda_flags = build.flags(machine.backend())
    return [flag for flag in flags if stable or flag != build.STABLE_ABI], cuda_flags


def _by_hand(folder: Path) -> Function:
    """nvcc on the command line, then setup.py; a later process only imports what they have left."""
    home = machine.cuda_home()
    if not any(folder.glob("gelu_by_hand*")):
        _, cuda_flags = build.flags("cuda")
        _command([home / "bin" / "nvcc", *cuda_flags, "-Xcompiler", "-fPIC", *(f"-I{place}" for place in INCLUDE), "-c",
                  SOURCES / "gelu_one.cu", "-o", folder / "gelu_one.o"])
        libraries = next(place for place in (home / "lib64", home / "lib") if place.exists())
        _command([sys.executable, "setup.py", "-q", "build_ext", "--build-lib", folder, "--build-temp", folder / "temp"],
                 cwd=SOURCES, env={**os.environ, "GELU_OBJECT": str(folder / "gelu_one.o"), "CUDA_LIBRARIES": str(libraries),
                                   "CUDA_INCLUDE": str(machine.cuda_include())})
    sys.path.insert(0, str(folder))
    return importlib.import_module("gelu_by_hand").gelu_one


def _command(words: list, **options: object) -> None:
    with toolchain.tools_on_path():
        done = subprocess.run(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        raise RuntimeError(f"{words[0]} failed:\n{done.stdout[-3000:]}")


# -- NVRTC --------------------------------------------------------------------------------------------------

def nvrtc_include() -> list[str]:
    """The folders in which NVRTC finds what gelu_one.cuh includes."""
    return list(map(str, (NVRTC_HEADERS, *INCLUDE, machine.cuda_include())))


# NVRTC takes a function that says nothing for host code and refuses it; as device code, those that nobody calls go.
NVRTC_OPTIONS = ["--device-as-default-execution-space"]


def _cupy(folder: Path) -> Function:
    import cupy

    module = cupy.RawModule(code='#include "gelu_one.cuh"', backend="nvrtc",
                            options=("-std=c++17", *NVRTC_OPTIONS, *(f"-I{place}" for place in nvrtc_include())))
    kernel = module.get_function("gelu_one")

    def gelu(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        with cupy.cuda.Device(x.device.index), cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel((_blocks(x),), (THREADS,), (x.data_ptr(), y.data_ptr(), cupy.int32(x.numel())))
        return y

    return gelu


def _compile_kernel(folder: Path) -> Function:
    toolchain.point_torch_to_cuda()
    # torch 2.9 puts extern "C" before a source that does not begin with it.
    kernel = torch.cuda._compile_kernel('extern "C" {}\n#include "gelu_one.cuh"', "gelu_one", cuda_include_dirs=nvrtc_include(),
                                        nvcc_options=["-std=c++17", *NVRTC_OPTIONS])

    def gelu(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        kernel((_blocks(x), 1, 1), (THREADS, 1, 1), [x, y, x.numel()])
        return y

    return gelu


def _blocks(x: torch.Tensor) -> int:
    return -(-x.numel() // (THREADS * VECTOR))


# -- other languages ----------------------------------------------------------------------------------------

def _triton(folder: Path) -> Function:
    module = python_part("gelu", "rivals_triton")

    def gelu(x: torch.Tensor) -> torch.Tensor:
        y, n = torch.empty_like(x), x.numel()
        # One configuration; the module's own function tries six, each compiled and timed.
        module._forward.fn[(-(-n // 1024),)](x, y, n, BLOCK=1024, num_warps=4)
        return y

    return gelu


def _torch_compile(folder: Path) -> Function:
    rivals = python_part("gelu", "rivals")
    return rivals.compiled(rivals.sigmoid_form)


_BUILDER, _TOOLS = ("torch.utils.cpp_extension",), "nvcc, C++ compiler, ninja"
_UNREGISTERED, _RAW = "gradient, torch.compile, other torch versions", "checks, device guard, gradient, torch.compile"
RUNGS = {
    "nvcc by hand, setup.py": Rung(_by_hand, (), "nvcc, C++ compiler, setuptools", _UNREGISTERED),
    "load(), torch/extension.h in the .cu": Rung(_all_in_one, _BUILDER, _TOOLS, _UNREGISTERED),
    "load_inline()": Rung(_inline, _BUILDER, _TOOLS, _UNREGISTERED),
    "load(), torch/extension.h in the binding": Rung(_extension, _BUILDER, _TOOLS, _UNREGISTERED),
    "load(), ATen's headers": Rung(_aten, _BUILDER, _TOOLS, "other torch versions"),
    "load(), stable ABI": Rung(_stable, _BUILDER, _TOOLS, "nothing"),
    "CuPy RawModule": Rung(_cupy, ("cupy",), "CuPy, CUDA's headers", _RAW),
    "torch.cuda._compile_kernel": Rung(_compile_kernel, _BUILDER, "CUDA's headers", _RAW),
    "Triton": Rung(_triton, ("triton",), "Triton, C compiler", f"CUDA C++, {_RAW}"),
    "torch.compile": Rung(_torch_compile, ("torch._dynamo", "torch._inductor"), "Triton, C compiler", "CUDA C++"),
}
NEEDS_ON_THE_CPU = "C++ compiler, ninja"
ON_THE_CPU = ("load(), torch/extension.h in the binding", "load(), stable ABI")


def climb(name: str, folder: Path) -> dict[str, float]:
    """Builds and launches by the way `name`: seconds of its imports, and from source to the end of the first launch.

    Raises RuntimeError where the result is wrong.
    """
    rung = RUNGS[name]
    device = machine.device()
    x = torch.linspace(-8, 8, ELEMENTS, device=device).to(torch.bfloat16)
    begun = time.perf_counter()
    for module in rung.imports:
        importlib.import_module(module)
    imported = time.perf_counter()
    y = rung.make(folder)(x)
    if device.type == "cuda":
        torch.cuda.synchronize()
    launched = time.perf_counter()
    exact = python_part("gelu", "reference").gelu(x.double())
    worst = (y.double() - exact).abs().max().item()
    if not worst <= 1.1 * 2**-6:  # half the distance between two bfloat16 numbers below 8, and a tenth
        raise RuntimeError(f"{name}: off by {worst} from float64")
    return {"import": imported - begun, "launch": launched - imported}


if __name__ == "__main__":
    sys.stdout.flush()
    print(json.dumps(climb(sys.argv[1], Path(sys.argv[2]))))
