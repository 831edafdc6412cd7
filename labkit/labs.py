"""Run the labs top to bottom, in this Python, and say what each checked and measured.

The executed copies go to build/labs/. The notebooks in labs/ are only read, unless `save` asks for their outputs. Cells
tagged `exercise` are the learner's: they are not run, and keep no outputs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from labkit import REPOSITORY, machine
from labkit.environment import importable
from labkit.sources import EXERCISE

LABS = REPOSITORY / "labs"
EXECUTED = REPOSITORY / "build" / "labs"
CELL_TIMEOUT = 1200  # seconds; a lab's longest cell takes a minute or two on a slow machine
TRACEBACK_LINES = 12
INTERRUPTED = "interrupted"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class ThisPython(AsyncKernelManager):
    """Starts the kernel with the Python that runs this, so that no kernel need be registered anywhere."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """The ipykernel of this Python."""
        # Errors only: newer ipykernels warn at each start that their local connection is not encrypted.
        argv = [sys.executable, "-m", "ipykernel_launcher", "--log-level=ERROR", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")


class LabFailed(Exception):
    """A lab did not run to its end; the text names the cell and the error."""


def run(names: list[str], save: bool = False, jobs: int = 1, console: Console | None = None) -> int:
    """Run the labs that `names` name ("04" or "04_fused_kernel"; all when empty) and print a closing table.

    A lab whose cell fails is told with the cell and the end of its traceback, and the others still run. With
    `save` the outputs of a lab that ran to its end replace the notebook in labs/. `jobs` labs run at a time, the last
    first, which saves time on a CPU and spoils what is timed there; a GPU is never shared. Returns the exit status: 0 when
    all ran to their end, 1 when one failed, 2 for a name that no lab has or for `save` without a GPU (the outputs
    in labs/ are those of a GPU, and nothing else may take their place), 130 when interrupted.
    """
    # Where output goes to a file or a CI log, rich would break lines at 80 columns.
    console = console or Console(width=None if sys.stdout.isatty() else 120)
    if save and machine.backend() != "cuda":
        console.print("[red]Not saved, and nothing was run: labs/ keeps the outputs of a run on a GPU, and there is none "
                      "here. Without --save the executed copies go to build/labs.")
        return 2
    try:
        paths = select(names)
    except LookupError as error:
        console.print(f"[red]{escape(str(error))}")
        return 2
    if not paths:
        console.print(f"There is no lab yet: {escape(str(LABS))} holds no notebook.")
        return 0
    begun = time.monotonic()
    EXECUTED.mkdir(parents=True, exist_ok=True)
    log = EXECUTED / "log.jsonl"
    log.write_text("", encoding="utf-8")
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("cell {task.completed} of {task.total}"),
               TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        jobs = 1 if machine.backend() == "cuda" else jobs
        if jobs > 1:  # they share the cores: with a thread a core each, PyTorch's operators would wait for one another
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
            paths = paths[::-1]  # the first labs are the short ones: begun last, they leave no core idle for long
        ended = asyncio.run(_run_all(paths, jobs, log, save, progress))
    console.print(_closing_table(log, ended))
    console.print(f"{sum(lab.failure is None for lab in ended)} of {len(paths)} labs ran to their end in "
                  f"{time.monotonic() - begun:.0f} s; executed copies: {escape(str(EXECUTED))}", highlight=False)
    if machine.backend() == "cuda":
        console.print("How the article's claims fare on this GPU: python3 -m labkit ledger", highlight=False)
    if any(lab.failure == INTERRUPTED for lab in ended):
        return 130
    return 1 if any(lab.failure for lab in ended) else 0


@dataclasses.dataclass(frozen=True)
class _Ended:
    """A lab that was begun, how long it ran, and why it did not run to its end; None where it did."""

    name: str
    seconds: float
    failure: str | None


async def _run_all(paths: list[Path], jobs: int, log: Path, save: bool, progress: Progress) -> list[_Ended]:
    """Runs `jobs` labs at a time, in the order given; Ctrl-C ends those that run, and no other is begun."""
    gate, ended, stopping = asyncio.Semaphore(jobs), [], asyncio.Event()

    async def run_one(path: Path) -> None:
        async with gate:
            if stopping.is_set():
                return
            begun, failure = time.monotonic(), None
            try:
                await _run_one(path, log, save, progress, interrupt)
            except (LabFailed, asyncio.CancelledError) as error:
                if stopping.is_set():  # nbclient takes a cancelled cell for a dead kernel, so either may come
                    failure = INTERRUPTED
                    progress.console.print(f"[red]Interrupted in {escape(path.stem)}; labs that were not begun did not run.")
                else:
                    failure = f"failed: {str(error).splitlines()[0]}"
                    progress.console.print(f"[red]{escape(path.stem)} failed: {escape(str(error))}", highlight=False)
            ended.append(_Ended(path.stem, time.monotonic() - begun, failure))

    def interrupt() -> None:
        stopping.set()
        for task in tasks:
            task.cancel()

    tasks = [asyncio.create_task(run_one(path)) for path in paths]
    await asyncio.gather(*tasks, return_exceptions=True)
    return ended


def select(names: list[str]) -> list[Path]:
    """The notebooks of labs/ that `names` name, in their order; all of them when `names` is empty.

    A name is a lab's number, its name or the beginning of that, or its path.

    Raises LookupError naming the name that no lab has and the labs that there are.
    """
    labs = sorted(LABS.glob("*.ipynb"))
    chosen = []
    for name in names:
        stem = Path(name).name.removesuffix(".ipynb")
        number = stem.zfill(2) if stem.isdecimal() else stem
        found = [path for path in labs if path.stem == stem or path.stem.split("_")[0] == number]
        found = found or [path for path in labs if stem and path.stem.startswith(stem)]
        if len(found) != 1:
            raise LookupError(f"There is no lab {name!r}; there are: {', '.join(p.stem for p in labs) or 'none'}")
        chosen += [path for path in found if path not in chosen]
    return chosen if names else labs


async def _run_one(path: Path, log: Path, save: bool, progress: Progress, interrupt: Callable) -> None:
    """Executes one notebook with a progress line; raises LabFailed, or CancelledError once its kernel is gone."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in (cell for cell in code if EXERCISE in cell.metadata.get("tags", [])):
        cell.update(outputs=[], execution_count=None)
    code = [cell for cell in code if cell.source.strip() and EXERCISE not in cell.metadata.get("tags", [])]
    reached = 0
    task = progress.add_task(escape(path.stem), total=len(code))

    def starts(cell: nbformat.NotebookNode) -> None:
        nonlocal reached
        reached = next((number for number, other in enumerate(code, start=1) if other is cell), reached)
        progress.update(task, completed=reached)

    try:
        await _execute(notebook, path.parent, log, starts, interrupt)
    except CellExecutionError as error:
        raise LabFailed(f"cell {reached} of {len(code)}: {error.ename}: {_tail(error)}") from error
    except CellTimeoutError as error:
        raise LabFailed(f"cell {reached} of {len(code)}: it ran for over {CELL_TIMEOUT} s") from error
    except DeadKernelError as error:
        raise LabFailed(f"cell {reached} of {len(code)}: its Python process ended (a crash, such as an access "
                        "outside memory, or no memory left)") from error
    except RuntimeError as error:
        raise LabFailed(f"its Python process did not start: {error}; its own words stand above, and python3 -m labkit doctor "
                        "may know the cause") from error
    finally:
        progress.stop_task(task)
        _write(notebook, EXECUTED / path.name)
    if save:
        _write(notebook, path)


async def _execute(notebook: nbformat.NotebookNode, folder: Path, log: Path, starts: Callable, interrupt: Callable) -> None:
    """Runs all cells with `folder` as the working folder, calling `starts(cell)` before each, and `interrupt` at Ctrl-C."""
    # nbclient's own signal handler ends the kernel without a word, so ours replaces it once that is set.
    loop = asyncio.get_running_loop()
    client = NotebookClient(notebook, timeout=CELL_TIMEOUT, kernel_manager_class=ThisPython, record_timing=False,
                            skip_cells_with_tag=EXERCISE,
                            resources={"metadata": {"path": str(folder)}},
                            on_notebook_start=lambda notebook: loop.add_signal_handler(signal.SIGINT, interrupt),
                            on_cell_start=lambda cell, cell_index: starts(cell))
    await client.async_execute(env={**importable(os.environ), "LABKIT_LOG": str(log)})


def _tail(error: CellExecutionError) -> str:
    lines = _ANSI.sub("", f"{error.evalue}\n{error.traceback}").rstrip().splitlines()
    return "\n    ".join([lines[0], *lines[1:][-TRACEBACK_LINES:]])


def _write(notebook: nbformat.NotebookNode, path: Path) -> None:
    # Written beside and renamed: an interruption leaves the old notebook or the new one, never half of one.
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
        nbformat.write(notebook, file)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def _closing_table(log: Path, ended: list[_Ended]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="What the labs checked and measured, and what they showed as it is recorded",
                  title_justify="left")
    for column in ("lab", "kind", "what", "outcome", "backend"):
        table.add_column(column, overflow="fold")
    for line in log.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        table.add_row(*(escape(str(entry[key] or "")) for key in ("lab", "kind", "name", "outcome", "backend")))
    for lab in ended:
        outcome = f"[red]{escape(lab.failure)}" if lab.failure else f"{lab.seconds:.1f} s"
        table.add_row(escape(lab.name), "run", "top to bottom", outcome, "")
    return table
