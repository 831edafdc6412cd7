"""Derives what must not be written twice: starters from solutions, by nbgrader's own preprocessor, and the cells of exercises
that stand at the end of a lab.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from traitlets.config import Config

from labkit import REPOSITORY, results
from labkit.exercises import names, read
from labkit.sources import EXERCISE as TAG

OPENING = """## Exercises

Each asks you to complete a small `.cu` file. It is graded on the CPU, by a trace of its accesses and by its numbers, so
a grade is the same without a GPU. `labkit.hint("NAME")` tells one hint at a time, `labkit.solution("NAME")` the answer."""
STUB = "// Your code here."
_CONFIG = Config(ClearSolutions={"code_stub": {"c++": STUB}, "enforce_metadata": False})


def derived(solution: str) -> str:
    """The text without what stands between "BEGIN SOLUTION" and "END SOLUTION". RuntimeError where one of them is missing.

    Needs workshop/requirements.txt.
    """
    from nbgrader.preprocessors import ClearSolutions

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(solution)],
                                        metadata={"kernelspec": {"name": "c++", "display_name": "C++", "language": "c++"}})
    cleared, _ = ClearSolutions(config=_CONFIG).preprocess(notebook, {})
    if cleared.cells[0].source == solution:
        raise RuntimeError('no "BEGIN SOLUTION" stands in the text')
    return cleared.cells[0].source


def cells(lab: str) -> list[nbformat.NotebookNode]:
    """The cells at the end of a lab: for each of its exercises the task, its file, its grade. None are run with the lab."""
    found = [_cell("markdown", "exercises", OPENING)]
    for number, name in enumerate(names(lab), 1):
        asked = read(name)
        found += [_cell("markdown", f"exercise-{name}", f"### {number}. {asked.title}\n\n{asked.task.strip()}"),
                  _cell("code", f"exercise-{name}-file", f'labkit.exercise("{name}")'),
                  _cell("code", f"exercise-{name}-grade", f'_ = labkit.grade("{name}")')]
    return found if len(found) > 1 else []


def _cell(kind: str, name: str, source: str) -> nbformat.NotebookNode:
    cell = getattr(nbformat.v4, f"new_{kind}_cell")(source, metadata={"tags": [TAG]})
    cell["id"] = name
    return cell


def write() -> None:
    """Writes anew what differs from what is derived, and names it."""
    for name in names():
        exercise = read(name)
        _write(exercise.starter, derived(exercise.solution.read_text(encoding="utf-8")))
    for path in sorted((REPOSITORY / "labs").glob("[0-9]*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        notebook.cells = [cell for cell in notebook.cells if TAG not in cell.metadata.get("tags", [])] + cells(path.stem)
        _write(path, nbformat.writes(notebook) + "\n")


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        results.replace(path, text)
        print(f"wrote {path.relative_to(REPOSITORY)}")
