"""Ctrl-C in the middle of a build: it ends at once, nothing half made is left, and the same call then succeeds."""

import os
import subprocess
import sys

import pytest

from labkit import machine
from labkit.environment import importable

PROGRAM = """\
import os, signal, sys, threading, time
import psutil, torch, labkit
from labkit.build_folder import build_root, holders

signal.signal(signal.SIGINT, signal.default_int_handler)  # who started the tests may have had it ignored
make, folder, *compiler = sys.argv[1:]
folder, compiler = build_root() / folder, tuple(compiler)


def compiles():
    for child in psutil.Process().children(recursive=True):
        try:
            if child.name().startswith(compiler) and "-" not in child.cmdline():  # the doctor's reads that
                return True
        except psutil.NoSuchProcess:
            pass


def interrupt():
    while not compiles() or not list(folder.glob("*.lock")):
        time.sleep(0.01)
    time.sleep(0.2)
    os.killpg(0, signal.SIGINT)  # as a terminal and Jupyter do: to the compiler too


threading.Thread(target=interrupt, daemon=True).start()
try:
    eval(make)
    sys.exit("it was not interrupted")
except KeyboardInterrupt:
    pass
for _ in range(100):  # a compiler that was interrupted takes its temporary files away as it goes
    left = [path for path in folder.iterdir() if not path.name.endswith(".lock")]
    if not left and not compiles():
        break
    time.sleep(0.1)
assert not left and not holders() and not compiles(), left
made = eval(make)
if folder.name == "cubin":
    assert made.kernels
else:
    x = torch.arange(5.0, device=made.device)
    assert torch.equal(made(x), x)
"""
needs_nvcc = pytest.mark.skipif(machine.find_nvcc() is None, reason="needs nvcc")
CXX = ["cc1plus", "clang"]  # the programs that compile


@pytest.mark.parametrize("make, folder, compiler", [
    pytest.param("labkit.load('copy', 1, backend='host')", "copy", CXX, id="one version, by the C++ compiler"),
    pytest.param("labkit.load('copy', backend='host')", "copy", CXX, id="all, by torch's builder"),
    pytest.param("labkit.compile_cubin('gelu')", "cubin", ["cicc"], id="machine code, by nvcc", marks=needs_nvcc),
    pytest.param("labkit.load('copy')", "copy", ["cicc"], id="for a GPU, by torch's builder and nvcc", marks=pytest.mark.gpu)])
def test_a_build_that_is_interrupted_leaves_nothing_and_is_begun_afresh_by_the_next_call(own_builds, tmp_path, make, folder,
                                                                                         compiler):
    (tmp_path / "temporary").mkdir()
    variables = {**importable(os.environ), "TMPDIR": str(tmp_path / "temporary")}
    done = subprocess.run([sys.executable, "-c", PROGRAM, make, folder, *compiler], capture_output=True, text=True, timeout=300,
                          start_new_session=True, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list((tmp_path / "temporary").iterdir())
