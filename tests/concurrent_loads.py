"""Run by tests/test_shared_builds.py: processes that load one operator at the same moment, from a cache that is empty.

    python tests/concurrent_loads.py FOLDER ROUNDS PROCESSES [removed]

Prints a line of JSON a round: what each process said ("built", "reused" or its error), and seconds. removed: all the while
builds get old dates, and what is unused is removed.
"""

import contextlib
import io
import json
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import torch

import labkit
from labkit import build_folder


def one(root, barrier, answers):
    try:
        os.environ["LABKIT_BUILD"] = str(root)
        said = io.StringIO()
        barrier.wait()
        with contextlib.redirect_stdout(said):
            copy = labkit.load("copy", version=1, backend="host")
        right = torch.equal(copy(torch.ones(3)), torch.ones(3))
        answers.put("wrong" if not right else "reused" if "reused, built for" in said.getvalue() else "built")
    except BaseException as error:  # whatever it is, the test wants to see it
        answers.put(repr(error))
        raise


def age_and_remove(root, ended):
    while not ended.is_set():
        for file in root.glob("copy/host-*[0-9a-f]/*"):
            with contextlib.suppress(FileNotFoundError):
                os.utime(file, (0, 0))
                os.utime(file.parent, (0, 0))
        build_folder.remove_unused(root)


if __name__ == "__main__":
    folder, rounds, processes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    context = multiprocessing.get_context("fork")  # of a process that has imported torch, and computed nothing with it yet
    for number in range(rounds):
        start, barrier, answers = time.perf_counter(), context.Barrier(processes), context.SimpleQueue()
        started = [context.Process(target=one, args=(folder / str(number), barrier, answers)) for _ in range(processes)]
        for process in started:
            process.start()
        ended = threading.Event()
        if sys.argv[4:] == ["removed"]:
            threading.Thread(target=age_and_remove, args=(folder / str(number), ended)).start()
        said = [answers.get() for _ in started]
        for process in started:
            process.join()
        ended.set()
        print(json.dumps([sorted(said), round(time.perf_counter() - start, 1)]), flush=True)
