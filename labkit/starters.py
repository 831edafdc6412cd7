"""Derives the starters of exercises from their solutions, by nbgrader's own preprocessor: nothing is written twice."""

from __future__ import annotations

import nbformat
from nbgrader.preprocessors import ClearSolutions
from traitlets.config import Config

from labkit.exercises import names, read

STUB = "// Your code here."
_CONFIG = Config(ClearSolutions={"code_stub": {"c++": STUB}, "enforce_metadata": False})


def derived(solution: str) -> str:
    """The text without what stands between "BEGIN SOLUTION" and "END SOLUTION". RuntimeError where one of them is missing."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(solution)],
                                        metadata={"kernelspec": {"name": "c++", "display_name": "C++", "language": "c++"}})
    cleared, _ = ClearSolutions(config=_CONFIG).preprocess(notebook, {})
    if cleared.cells[0].source == solution:
        raise RuntimeError('no "BEGIN SOLUTION" stands in the text')
    return cleared.cells[0].source


def write() -> None:
    """Writes every starter anew that differs from what its solution gives, and names it."""
    for name in names():
        exercise = read(name)
        text = derived(exercise.solution.read_text(encoding="utf-8"))
        if not exercise.starter.exists() or exercise.starter.read_text(encoding="utf-8") != text:
            exercise.starter.write_text(text, encoding="utf-8")
            print(f"wrote {exercise.starter.relative_to(exercise.folder.parents[1])}")
