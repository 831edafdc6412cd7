"""A stand-in for a training program, in ms instead of seconds: a loss a step, a checkpoint every ten, a log as of train.py.

The environment variable FAULT names what it does wrong: "other" losses after an interruption, "anew" from the start.
"""

import argparse
import json
import os
import time
from pathlib import Path

import psutil

parser = argparse.ArgumentParser()
for name in ("device", "precision", "way"):
    parser.add_argument(f"--{name}")
parser.add_argument("--tiny", action="store_true")
parser.add_argument("--steps", type=int)
parser.add_argument("--save-every", type=int, default=10)
parser.add_argument("--folder", type=Path)
options = parser.parse_args()
fault, saved, log = os.environ.get("FAULT"), options.folder / "saved", options.folder / "log.jsonl"
first = int(saved.read_text()) if saved.exists() and fault != "anew" else 0
late = saved.exists()
print("some words")
if os.environ.get("RANK", "0") == "1":  # as one that waits in a collective, until the end
    (options.folder / "other").write_text(str(os.getpid()))
    while not (options.folder / "ended").exists():
        time.sleep(0.05)
    os._exit(0)


def other_lives():
    try:
        return psutil.Process(int((options.folder / "other").read_text())).status() != psutil.STATUS_ZOMBIE
    except (OSError, ValueError, psutil.NoSuchProcess):
        return False


def together():
    """Waits for the other process, as in a collective: for ever, if it is dead."""
    while "RANK" in os.environ and not other_lives():
        time.sleep(0.01)


def write(**event):
    with log.open("a") as file:
        file.write(json.dumps(event) + "\n")


write(start=first)
for step in range(first, options.steps):
    together()
    time.sleep(0.02)
    write(step=step, loss=1 / (step + 1) + (1e-16 * step if late and fault == "other" else 0))
    if (step + 1) % options.save_every == 0:
        beside = saved.with_suffix(".tmp")
        beside.write_text(str(step + 1))
        beside.rename(saved)
write(end=options.steps)
(options.folder / "ended").touch()
