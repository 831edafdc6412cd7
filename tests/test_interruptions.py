"""Ctrl-C in the middle of a build: it ends at once, nothing half made is left in use, and the same call then succeeds."""

import os
import subprocess
import sys

import pytest

from labkit import REPOSITORY

PROGRAM = """\
import os, signal, sys, threading, time
import psutil, torch, labkit
from labkit.build_folder import build_root, holders

copies = build_root() / "copy"
version = int(sys.argv[1]) or None


def interrupt():
    while not (list(copies.glob("*.work")) and psutil.Process().children()):
        time.sleep(0.01)
    time.sleep(0.2)
    os.killpg(0, signal.SIGINT)  # as a terminal and Jupyter do: to the compiler too


threading.Thread(target=interrupt, daemon=True).start()
try:
    labkit.load("copy", version=version)
    sys.exit("it was not interrupted")
except KeyboardInterrupt:
    pass
left = [path for path in copies.iterdir() if path.suffix != ".lock"]
assert not left and not holders(), left
x = torch.arange(5.0)
assert torch.equal(labkit.load("copy", version=version)(x), x)
"""


@pytest.mark.parametrize("version", [1, 0], ids=["one version, by the C++ compiler", "all, by torch's builder"])
def test_a_build_that_is_interrupted_leaves_nothing_and_is_begun_afresh_by_the_next_load(own_builds, version):
    variables = {**os.environ, "LABKIT_BACKEND": "host", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(version)], capture_output=True, text=True, timeout=300,
                          start_new_session=True, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
