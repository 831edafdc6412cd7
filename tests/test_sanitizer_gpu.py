"""compute-sanitizer on the kernels that use shared memory: clean as they are, and what it says of a race beside the trace."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import labkit

pytestmark = pytest.mark.gpu


def sanitized(tool, *arguments, kernels=None):
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(sanitizer).exists():
        pytest.skip("compute-sanitizer is not installed")
    command = [sys.executable, str(Path(__file__).with_name("launch_operator.py")), *arguments]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", **({"LABKIT_KERNELS": str(kernels)} if kernels else {})}
    subprocess.run(command, env=environment, check=True, capture_output=True)  # built before, not under the sanitizer
    return subprocess.run([sanitizer, "--tool", tool, "--error-exitcode", "9", *command], capture_output=True, text=True,
                          timeout=400, env=environment)


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
@pytest.mark.parametrize("name, versions, shapes", [
    ("transpose", "1,2,3,4", ("33x70", "64x64")), ("stencil", "1,2,3", ("33x70", "100x31")),
    ("row_sum", "1,2,3,4", ("3x33", "2x1000")), ("copy", "1,2,3,4,5", ("1003",)),
    ("geometry", "1,3,5,7,9", ("1003", "8195")), ("fold", "1,2", ("33x70", "9x256")),
    ("softmax", "1,2,3,4,5,6", ("5x33", "6x264", "2x1544", "1x8195")),
    ("add_norm", "1,2,3,4,5", ("5x33", "6x264", "2x1544", "1x8195"))])
def test_compute_sanitizer_finds_nothing(tool, name, versions, shapes):
    done = sanitized(tool, name, versions, *shapes)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert f"launched {2 * len(shapes) * len(versions.split(','))} of each mode" in done.stdout


BARRIER = "        __syncthreads();\n"
ADD = "        if (t < s) part[t] += part[t + s];\n"


@pytest.mark.parametrize("name, version, old, new, shape", [
    ("transpose", 3, BARRIER[4:], "", (64, 64)),
    ("row_sum", 3, ADD + BARRIER, ADD + "        if (s > 32) __syncthreads();\n", (4, 1024))])
def test_racecheck_and_trace_find_the_same_race(name, version, old, new, shape):
    broken = labkit.mutant(name, version, old, new)
    found = labkit.trace(broken, version, size=shape, dtype=torch.float32, show=False)
    lines = {line.rpartition(":")[2] for f in found.findings if f.kind.startswith("race") for line in (f.line, f.other_line)}
    done = sanitized("racecheck", name, str(version), "x".join(map(str, shape)), kernels=broken.source.parents[1])
    assert done.returncode == 9, done.stdout[-3000:]
    reported = set(re.findall(rf"{name}\.cu:(\d+)", done.stdout))
    assert lines and reported and lines <= reported, (lines, reported)
