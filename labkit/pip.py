"""Run pip with one line of progress, its whole output in a log, and one clear line when it fails.

Only the standard library: it runs before anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

_LARGE_MB = 20  # where lines can't be redrawn (a log of CI), only downloads from this size on are told
_SIZE = re.compile(r"\(([\d.]+) (kB|MB|GB)\)")
_HINTS = (("No space left on device", "Free some disk space"),
          ("CERTIFICATE_VERIFY_FAILED", "Check this machine's certificates and proxy"),
          ("connection", "Check the network and proxy settings"),
          ("Could not find a version", "Check the network, and that this Python is one that the package supports"),
          ("Permission denied", "Check who owns this folder"))


class SetupError(RuntimeError):
    """Something that the book needs can't be installed; the text names it and says what to do."""


class Killed(SetupError):
    """pip itself was ended from outside (no memory left, say) and could not put things back."""


def pip_install(*arguments: str, python: Path, folder: Path, log: Path) -> None:
    """`python -m pip install ARGUMENTS`, run in `folder`; all that pip prints is appended to the file `log`.

    Raises SetupError with pip's own last error and what to do about it.
    """
    # Output is read line by line; "raw" makes pip print the bytes it has as lines, which older ones can't do. Python compiles
    # what it imports; to compile all that is installed takes longer than everything else here but the download.
    command = [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-compile"]
    progress = _Progress()
    errors: list[str] = []
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        for arguments_now in (["--progress-bar", "off", "pip>=24.1"], ["--progress-bar", "raw", *arguments]):
            environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
            with subprocess.Popen([*command, *arguments_now], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                                  errors="replace") as process:
                for line in process.stdout:
                    if not progress.show(line):
                        file.write(line)
                    if re.match(r"ERROR|error:|.*(Errno|Retrying)", line):
                        errors.append(line.strip())
            if process.returncode:
                progress.end()
                kind = Killed if process.returncode < 0 else SetupError
                raise kind(_explain(errors, process.returncode, log))
    progress.end()


def _explain(errors: list[str], code: int, log: Path) -> str:
    said = " ".join(errors)
    hint = next((advice for sign, advice in _HINTS if sign.lower() in said.lower()), "Read the end of that file")
    reason = next((line for line in reversed(errors) if line.startswith("ERROR") and "ResolutionImpossible" not in line),
                  f"pip ended with status {code}")  # the line passed over names no package: the one before it does
    return f"pip could not install the packages: {reason[:300]} (its whole output: {log}). {hint}, " \
           "then run the same command again; what was downloaded is kept."


class _Progress:
    """One line that is redrawn on a terminal; elsewhere a line for each large download."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self.packages = 0
        self.what = ""

    def show(self, line: str) -> bool:
        """Take in a line that pip printed; True when it only told how far a download is."""
        done = re.match(r"Progress (\d+) of (\d+)", line)
        if done:
            self._draw(f"{self.what}: {int(done[1]) * 100 // max(int(done[2]), 1)}%")
            return True
        if line.startswith("Collecting "):
            self.packages += 1
            self._draw(f"{self.packages} packages: {line.split()[1]}")
        elif line.lstrip().startswith("Downloading "):
            # The name alone: where it comes from is pip's configuration.
            self.what = "downloading " + re.split(r"[/\s]", line.split(None, 1)[1].split(" (")[0])[-1].split("-")[0]
            size = _SIZE.search(line)
            if size:
                self.what += f" {size[0]}"
                if not self.live and float(size[1]) * {"kB": 1e-3, "MB": 1, "GB": 1e3}[size[2]] >= _LARGE_MB:
                    print(f"  {self.what}", flush=True)
            self._draw(self.what)
        elif line.startswith("Installing collected packages"):
            self.what = f"installing: {line.count(',') + 1} in all"
            if not self.live:
                print(f"  {self.what}", flush=True)
            self._draw(self.what)
        return False

    def end(self) -> None:
        """Leave the terminal at the start of a clean line."""
        self._draw("")

    def _draw(self, text: str) -> None:
        if self.live:
            width = shutil.get_terminal_size().columns - 3
            print(f"\r\033[K{'  ' + text[:width] if text else ''}", end="", flush=True)
