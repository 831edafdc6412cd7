"""`ladder`: from source to the first launch in ten ways, each cold and warm, each in a process of its own."""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import tempfile
from pathlib import Path

import torch

from labkit import figures, machine, results
from labkit.environment import in_a_new_process
from labkit.report import keep, show_recorded
from labkit.rungs import NEEDS_ON_THE_CPU, ON_THE_CPU, RUNGS

LIMIT = 600  # seconds for one way
SHORT, REPEATS = 5, 3  # a way that takes less than SHORT seconds is measured REPEATS times


class Failed(RuntimeError):
    """A way from source to a launch did not get there; the text says why."""


def ladder(name: str, rungs: tuple[str, ...] | None = None) -> list[dict]:
    """Times how long each way takes from source to the first launch of the same kernel.

    name: what the table is called in results/. rungs: some of `labkit.rungs.RUNGS`; by default all that this machine has.

    A way runs in a fresh process in which torch is imported and the GPU is ready. Cold, it finds an empty cache; warm, its
    own of the run before. What it imports beside torch is timed apart. The result is checked against float64. A row a way:
    cold and warm in seconds (cold, on a GPU, the median of 3 where it is short), import, the share of the slowest, what it
    needs, what it gives up. A way that fails here is left out, with its own error in print; Failed where all do. Without a
    GPU the recorded table is shown as well, and those run here that the CPU can: C++ bindings around the host backend. Raises
    ValueError for a way that there is not.
    """
    on_gpu = machine.backend() == "cuda"
    possible = tuple(RUNGS) if on_gpu else ON_THE_CPU
    chosen = possible if rungs is None else rungs
    if unknown := [rung for rung in chosen if rung not in possible]:
        raise ValueError(f"rungs has {unknown[0]!r}; on this machine there are {', '.join(possible)}")
    if not on_gpu and results.session().lab is not None:
        show_recorded([name], "From source to the first launch")
    _read_headers()
    measured, refused = {}, {}
    for rung in chosen:
        if missing := [module for module in RUNGS[rung].imports if not _is_there(module)]:
            refused[rung] = f"{missing[0]} is not installed"
            continue
        try:
            measured[rung] = _measure(rung)
        except Failed as failed:
            refused[rung] = str(failed)
    for rung, why in refused.items():
        print(f"Left out: {rung}, since here {why}")
    if not measured:
        raise Failed("none of the ways gets to a launch here; see above")
    slowest = max(cold for cold, _, _ in measured.values())
    rows = [{"way": rung, "cold, s": _seconds(cold), "warm, s": _seconds(warm), "import, s": _seconds(imports),
             "cold, of the slowest": figures.percent(cold / slowest),
             "needs": RUNGS[rung].needs if on_gpu else NEEDS_ON_THE_CPU, "gives up": RUNGS[rung].gives_up}
            for rung, (cold, warm, imports) in measured.items()]
    results.note("measured", "from source to the first launch", f"{len(rows)} ways, cold and warm")
    drawn = {"columns": ["cold, s", "warm, s"], "label": "seconds from source to the first launch", "scale": "log"}
    keep({name: results.table_of(f"From source to the first launch, on {machine.cpu()}", rows, bars=drawn)})
    return rows


def _read_headers() -> None:
    """Once, so that the first way is not the one that fetches torch's headers from the disk."""
    for header in (Path(torch.__file__).parent / "include").rglob("*.h"):
        header.read_bytes()


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module.split(".")[0]) is not None


def _seconds(value: float) -> float:
    return round(value, 3 if value < 1 else 2)


def _measure(rung: str) -> tuple[float, float, float]:
    """(cold, warm, imports) in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = [_climb(rung, Path(folder))], _climb(rung, Path(folder))
    if machine.backend() == "cuda" and cold[0]["launch"] < SHORT:  # what the CPU's builds take is no figure of the book
        for _ in range(REPEATS - 1):
            with tempfile.TemporaryDirectory() as folder:
                cold.append(_climb(rung, Path(folder)))
    return statistics.median(run["launch"] for run in cold), warm["launch"], warm["import"]


def _climb(rung: str, folder: Path) -> dict[str, float]:
    """Runs one way in a process of its own whose caches are all in `folder`."""
    caches = {name: str(folder / name.lower()) for name in
              ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")}
    try:
        return in_a_new_process("labkit.rungs", rung, str(folder), timeout=LIMIT, **caches)
    except subprocess.TimeoutExpired:
        raise Failed(f"{rung}: not ready after {LIMIT} s") from None
    except RuntimeError as error:
        raise Failed(f"{rung}: {error}") from None
