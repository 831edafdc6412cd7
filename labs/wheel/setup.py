"""Builds gelu_op: the GeLU of kernels/gelu/ as a wheel that runs with torch 2.9 and newer, on any Python 3.

    python -m pip wheel labs/wheel --no-build-isolation --no-deps -w build/wheels

TORCH_CUDA_ARCH_LIST says for which GPUs, as it does for torch's own builds: "9.0;12.0+PTX".

For an operator of your own: copy this folder, rename gelu_op/, and change the names in these files.
"""

import atexit
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path.insert(0, str(REPOSITORY))

from labkit import build, host, machine, operator  # noqa: E402

OPERATOR, PACKAGE, RELEASE = "gelu", "gelu_op", "0.1"
GPUS = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")  # Turing to Blackwell

SOURCE = operator.source_path(OPERATOR)
VERSION = max(operator.listed_versions(SOURCE.read_text(encoding="utf-8")))
INCLUDE = [operator.kernels() / "include", SOURCE.parent]
TORCH = Path(torch.__file__).parent
NVCC, CXX = machine.find_nvcc(), machine.find_cxx() or "c++"

FLAGS = [*build.CXX_FLAGS, f"-DNAMESPACE={PACKAGE}", f"-DBUILD_VERSION={VERSION}"]
# Messages name a source file by its path; what lies on this machine before it is nobody's business.
PLAIN_PATHS = [f"-ffile-prefix-map={folder}/=" for folder in (operator.kernels().parent, TORCH.parent)]
# libtorch.so alone, and kept although nothing is taken from it directly: in a build of torch for CUDA it brings the
# CUDA part along, which need not be there where this is linked. The package is never told where torch lies: it imports
# torch first, and then the library is there. -s drops the names of the functions inside.
LIBRARIES = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["--no-as-needed", "-ltorch", "-s"]


def targets() -> list[str]:
    """What nvcc is to compile for, as its own flags."""
    known = (machine.output(NVCC, "--list-gpu-arch") or "").split()
    default = [gpu for gpu in GPUS if f"compute_{gpu.replace('.', '')}" in known]
    os.environ["TORCH_CUDA_ARCH_LIST"] = os.environ.get("TORCH_CUDA_ARCH_LIST") or ";".join(default) + "+PTX"
    from torch.utils import cpp_extension  # a second, and only a build for GPUs needs it

    return cpp_extension._get_cuda_arch_flags()


def named(kind: str, flags: list[str]) -> list[str]:
    """The architectures of one kind, "sm" or "compute", that the flags ask for, in rising order."""
    return sorted(re.findall(rf"code=({kind}_\w+)", " ".join(flags)), key=lambda name: int(re.sub(r"\D", "", name)))


def run(*command: object) -> None:
    if subprocess.run([*map(str, command)], stderr=subprocess.STDOUT).returncode:
        raise SystemExit(f"{Path(str(command[0])).name} could not build {PACKAGE}; see its errors above")


def compile_cuda(library: Path) -> None:
    # One call compiles and links. -nodlink: device code is not linked across files here, and the step would note paths.
    # nvcc splits what it hands on at spaces and commas, which these may hold, unless it is quoted.
    host_flags = [f'-Xcompiler="{flag}"' for flag in ("-fPIC", *PLAIN_PATHS)]
    run(NVCC, "-shared", "-nodlink", "-cudart", "static", "--threads", "0", *FLAGS, "-DUSE_CUDA", "-diag-suppress=177",
        *targets(), *host_flags, *(f"-I{folder}" for folder in (*INCLUDE, TORCH / "include")), f"-L{TORCH / 'lib'}",
        *(f"-Xlinker={flag}" for flag in LIBRARIES), SOURCE, SOURCE.parent / "binding.cpp", "-o", library)


def compile_cpu(library: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        source = host.transform_into(Path(work), SOURCE, [*map(str, INCLUDE)])
        folders = [work, host.INCLUDE_DIR, *INCLUDE, TORCH / "include"]
        run(CXX, "-shared", "-fPIC", *FLAGS, *host.CXX_FLAGS, *PLAIN_PATHS,
            f"-ffile-prefix-map={work}/=", *(f"-I{folder}" for folder in folders), f"-L{TORCH / 'lib'}",
            source, SOURCE.parent / "binding.cpp", *(f"-Wl,{flag}" for flag in LIBRARIES), "-o", library)


class BuildLibraries(build_py):
    """Python files as usual, and beside them the operator's op.py, the libraries, and what they were built with."""

    def run(self):
        super().run()
        package = Path(self.build_lib) / PACKAGE
        shutil.copy(SOURCE.parent / "op.py", package)
        flags = []
        if NVCC:
            compile_cuda(package / "_cuda.so")
            flags = targets()
        compile_cpu(package / "_cpu.so")
        built = {"torch": torch.__version__, "cuda": machine.nvcc_version(), "python": platform.python_version(),
                 "sass": named("sm", flags), "ptx": named("compute", flags), "version": VERSION}
        (package / "built.json").write_text(json.dumps(built, indent=1) + "\n", encoding="utf-8")


class AnyPython(bdist_wheel):
    """The libraries contain nothing of Python's: the wheel belongs to a platform and to no version of Python."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class WithLibraries(Distribution):
    def has_ext_modules(self):
        return True  # or it would pass for a wheel of Python files, which fits every platform


def version() -> str:
    """The release, and after "+" what it was built with and a hash over all that went into it."""
    tools = [torch.__version__, platform.python_version(), machine.nvcc_version(), machine.output(CXX, "--version")]
    digest = hashlib.sha256(repr([FLAGS, targets() if NVCC else [], tools]).encode())
    folders = [HERE, *INCLUDE, host.INCLUDE_DIR]
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    for path in [*files, *sorted(Path(host.__file__).parent.glob("host*.py"))]:
        if "__pycache__" not in path.parts:
            digest.update(path.name.encode() + path.read_bytes())
    toolkit = f"cuda{machine.nvcc_version()}" if NVCC else "cpu"
    # The letter before the hash: a part of digits alone would be read as a number, and lose its leading zeros.
    return f"{RELEASE}+torch{torch.__version__.split('+')[0]}.{toolkit}.h{digest.hexdigest()[:8]}"


work = tempfile.mkdtemp()  # nothing is left in this folder, and two builds at a time do not meet
atexit.register(shutil.rmtree, work, ignore_errors=True)
setup(version=version(), distclass=WithLibraries, cmdclass={"build_py": BuildLibraries, "bdist_wheel": AnyPython},
      options={"build": {"build_base": work}, "egg_info": {"egg_base": work}})
