"""Ctrl-C in the middle of a build: it ends at once, nothing half made is left in use, and the same call then succeeds."""

import os
import shutil
import subprocess
import sys

import pytest

from labkit import REPOSITORY, build, operator

PROGRAM = """\
import os, signal, sys, threading, time
import psutil, torch, labkit
from labkit import build

version = int(sys.argv[1]) or None


def interrupt():
    while not (list((build.BUILD_ROOT / "copy").glob("*.work")) and psutil.Process().children()):
        time.sleep(0.01)
    time.sleep(0.2)
    os.killpg(0, signal.SIGINT)  # as a terminal and Jupyter do: to the compiler too


threading.Thread(target=interrupt, daemon=True).start()
try:
    labkit.load("copy", version=version)
    sys.exit("it was not interrupted")
except KeyboardInterrupt:
    pass
left = [path.name for path in (build.BUILD_ROOT / "copy").glob("*/*.so") if path.parent.suffix != ".work"]
assert not left, left
x = torch.arange(5.0)
assert torch.equal(labkit.load("copy", version=version)(x), x)
assert not list((build.BUILD_ROOT / "copy").glob("*.work"))
"""


@pytest.mark.parametrize("version", [1, 0], ids=["one version, by the C++ compiler", "all, by torch's builder"])
def test_a_build_that_is_interrupted_is_begun_afresh_by_the_next_load(tmp_path, version):
    shutil.copytree(operator.kernels(), tmp_path / "kernels")
    (tmp_path / "build").mkdir()
    for kept in build.BUILD_ROOT.glob("*.o"):
        shutil.copy(kept, tmp_path / "build")
    for parsed in build.BUILD_ROOT.glob("parsed-*/"):
        shutil.copytree(parsed, tmp_path / "build" / parsed.name)
    variables = {**os.environ, "LABKIT_BUILD": str(tmp_path / "build"), "LABKIT_KERNELS": str(tmp_path / "kernels"),
                 "LABKIT_BACKEND": "host", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(version)], capture_output=True, text=True, timeout=300,
                          start_new_session=True, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
