"""Builds the kernels of tests/host_kernels with the host backend, for the tests of it."""

import atexit
import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch

from labkit import build, host, machine
from labkit.tracing import MOST_EVENTS, Recorder

KERNELS = Path(__file__).parent / "host_kernels"
NAMES = sorted(path.stem for path in KERNELS.glob("*.cu"))
COMPILERS = [cxx for cxx in ("g++", "clang++") if shutil.which(cxx)]
# What launchers return.
INVALID_VALUE, INVALID_CONFIGURATION, INVALID_DEVICE, ASSERT, LAUNCH_FAILURE, NOT_SUPPORTED = 1, 9, 101, 710, 719, 801


def compile_text(text, folder, name="kernel.cu", flags=(), cxx=None):
    """Runs the C++ compiler over a transformed .cu text; returns (finished process, library)."""
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text(host.transform(text, name), encoding="utf-8")
    (folder / name).write_text(text, encoding="utf-8")  # for the lines that g++ quotes
    command = [cxx or machine.find_cxx() or "c++", *host.CXX_FLAGS, "-fPIC", "-shared", *flags,
               "-I", host.INCLUDE_DIR, "-I", KERNELS, "-o", library, source]
    return subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True), library


@functools.cache
def library(name):
    """tests/host_kernels/NAME.cu, built once a session and loaded."""
    path = KERNELS / f"{name}.cu"
    with tempfile.TemporaryDirectory() as folder:
        done, built = compile_text(path.read_text(encoding="utf-8"), Path(folder), path.name)
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(built))


def call(function, *arguments):
    """Calls a launcher; arrays and tensors go as pointers, integers as they are."""
    converted = []
    for a in arguments:
        if isinstance(a, np.ndarray):
            assert a.flags.c_contiguous
            converted.append(ctypes.c_void_p(a.ctypes.data))
        elif isinstance(a, torch.Tensor):
            converted.append(ctypes.c_void_p(a.data_ptr()))
        else:
            converted.append(ctypes.c_size_t(a))
    return function(*converted)


@functools.cache
def traced(name):
    """The same, built in trace mode; returns the library's path. It stays for the session."""
    path, folder = KERNELS / f"{name}.cu", Path(tempfile.mkdtemp(prefix="traced-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, built = folder / f"{path.name}.cpp", folder / f"{name}.so"
    source.write_text(host.transform(path.read_text(encoding="utf-8"), str(path)), encoding="utf-8")
    flags = [*host.CXX_FLAGS, "-DCUDA_HOST_TRACE", f"-I{host.INCLUDE_DIR}", f"-I{KERNELS}"]
    watched = folder / f"{name}.o"
    host.compile_object(source, [*flags, *host.WATCH_FLAGS], watched, gcc=True)
    subprocess.run(["g++", *flags, "-shared", "-o", built, watched, build.tracer()], check=True)
    return built


def trace(name, function, arrays, *numbers, events=MOST_EVENTS):
    """Traces one call of a launcher of NAME.cu. arrays: {name: (tensor, role)}, in the launcher's order.

    Returns (the trace, the launcher's result, the arrays as the kernel left them).
    """
    built = traced(name)
    recorder = Recorder(built, KERNELS / f"{name}.cu", events)
    given = {label: recorder.array(tensor, label, role) for label, (tensor, role) in arrays.items()}
    code = call(getattr(ctypes.CDLL(str(built)), function), *given.values(), *numbers)
    return recorder.finish(function, function), code, {label: tensor.clone() for label, tensor in given.items()}
