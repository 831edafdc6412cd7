"""`default_stream`: what a launch that names no stream does under torch, with nvcc's --default-stream flag and without.

    python -m labkit.null_stream LAUNCH    tries one of LAUNCHES in this process and prints what it found as JSON

Each way has a process of its own, since an error in a capture may leave a process unusable.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings

import torch

from labkit import machine, results
from labkit.build import load
from labkit.environment import in_a_new_process
from labkit.mutants import mutant
from labkit.operator import Operator
from labkit.report import keep, show_recorded
from labkit.staleness import busy

OLD, NEW = "<<<blocks, THREADS, 0, stream>>>", "<<<blocks, THREADS>>>"
# How version 1 of copy is launched: the flags for nvcc where NEW stands in place of OLD, None where it is left as it is.
LAUNCHES = {"<<<grid, block>>>": (),
            "the same, --default-stream per-thread": ("--default-stream=per-thread",),
            "<<<grid, block, 0, stream>>>": None}  # torch's current one
TRIES = 50
ELEMENTS = 1 << 16
LIMIT = 300  # seconds for a process


def default_stream(name: str) -> list[dict]:
    """Copies a tensor that a slow producer is still to fill, and counts how often the copy came too early.

    name: what the table is called in results/.

    A row a launch of LAUNCHES: how many of TRIES copies read what stood there before, with torch on its default stream and
    on a side stream (the producer and the launch in the same one, as in any operator); and what becomes of the launch in the
    capture of a CUDA graph, in words. Without a GPU the recorded table is shown and [] returned. Raises RuntimeError, with
    its last words, where a process fails.
    """
    title = f"A launch behind a slow producer: stale copies of {TRIES}"
    if machine.backend() != "cuda":
        return show_recorded([name], title)
    rows = [{"launch": launch, **in_a_new_process("labkit.null_stream", launch, timeout=LIMIT)} for launch in LAUNCHES]
    results.note("measured", title, ", ".join(f"{row['on a side stream']}" for row in rows) + " on a side stream")
    keep({name: results.table_of(title, rows)})
    return rows


# -- the child ----------------------------------------------------------------------------------------------

def _found(launch: str) -> dict:
    cuda_flags = LAUNCHES[launch]
    copy = load("copy", 1) if cuda_flags is None else mutant("copy", 1, OLD, NEW, "cuda", cuda_flags)
    return {"on torch's default stream": _stale(copy, torch.cuda.default_stream()),
            "on a side stream": _stale(copy, torch.cuda.Stream()), "captured in a graph": _captured(copy)}


def _stale(copy: Operator, stream: torch.cuda.Stream) -> int:
    with torch.cuda.stream(stream):
        x = torch.zeros(ELEMENTS, device="cuda")
        y = copy.ops.forward(x, 1)  # what a first launch does may wait for all streams
        stale = 0
        for turn in range(1, TRIES + 1):
            torch.cuda.synchronize()
            busy()  # the producer is slow
            x.fill_(turn)
            copy.ops.forward_out(x, y, 1)
            torch.cuda.synchronize()
            stale += bool((y != turn).any())
    return stale


def _captured(copy: Operator) -> str:
    x, y, graph = torch.ones(ELEMENTS, device="cuda"), torch.zeros(ELEMENTS, device="cuda"), torch.cuda.CUDAGraph()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with torch.cuda.graph(graph):
                copy.ops.forward_out(x, y, 1)
        except RuntimeError as error:
            while error.__context__:  # the launch's own, before that of the capture's end
                error = error.__context__
            return f"refused: {str(error).strip().splitlines()[0]}"
    torch.cuda.synchronize()
    at_once = bool((y == 1).all())
    x.fill_(2)
    graph.replay()
    torch.cuda.synchronize()
    said = f"; torch warns: {str(warned[0].message).split('.')[0]}" if warned else ""
    return f"{'in the graph' if (y == 2).all() else 'not in the graph'}{', ran during the capture' if at_once else ''}{said}"


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        _json = json.dumps(_found(sys.argv[1]))
    print(_json)
