"""Does what a learner does first, as the account that runs it, and ends with the backend's name. For the pre-flight.

python try_account.py BYTES. It takes so much room in the home, and in a folder there, which goes again, it makes a workspace,
builds a kernel from nothing, runs it, and checks what it computes.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

WORKSPACE = Path(__file__).resolve().with_name("workspace.py")
FIRST = """\
import os
os.environ["LABKIT_BUILD"] += ".cold"
import labkit
from labkit import machine
labkit.check(labkit.load("copy"), versions=[1])
print(machine.backend())
"""


def main(room: int) -> int:
    """The exit status. OSError where the home takes no folder, or not as many bytes."""
    with tempfile.TemporaryDirectory(prefix=".preflight-", dir=Path.home()) as place:
        with tempfile.TemporaryFile(dir=place) as file:
            os.posix_fallocate(file.fileno(), 0, room)
        return subprocess.run([sys.executable, WORKSPACE, sys.executable, "-c", FIRST],
                              env={**os.environ, "HOME": place}).returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
