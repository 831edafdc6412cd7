"""Assignments for nbgrader: a source notebook a lab, made of its exercises, so that a class hands in and is graded."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit import REPOSITORY
from labkit.exercises import Exercise, names, read

CONFIG = REPOSITORY / "workshop" / "nbgrader_config.py"
_INTRODUCTION = """\
# Exercises of {lab}

Each exercise has a cell that writes a `.cu` file beside this notebook. Edit it, run it, and run the cell below it: that says
what is right, what is not, and what to think of. `labkit.hint("NAME")` in a cell of your own tells one more hint at a time.
Save, and submit as often as you like: the last one counts."""
_CONFIG = """\
# What the workshop's courses share; what this one has of its own may stand below.
load_subconfig({name!r}, path={folder!r})  # noqa: F821
"""


def write(course: Path) -> None:
    """Writes course/source/LAB/LAB.ipynb for each lab that has exercises, and course/nbgrader_config.py, and says which.

    The folder is made, for nobody but its owner, where there is none: later it holds all answers and grades. A file that is
    there and differs is left, and named: it may have been edited.
    """
    course.mkdir(mode=0o700, parents=True, exist_ok=True)
    texts = {course / "nbgrader_config.py": _CONFIG.format(name=CONFIG.name, folder=str(CONFIG.parent))}
    for lab in dict.fromkeys(read(name).lab for name in names()):
        texts[course / "source" / lab / f"{lab}.ipynb"] = nbformat.writes(notebook(lab)) + "\n"
    for path, text in texts.items():
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
        elif path.read_text(encoding="utf-8") != text:
            print(f"left {path}, which differs from what would be written; remove it to have it anew")


def notebook(lab: str) -> nbformat.NotebookNode:
    """The source notebook of a lab such as "08_sync_pitfalls", solutions and all: a task, an answer and a test an exercise."""
    cells = [_marked(new_markdown_cell(_INTRODUCTION.format(lab=lab)), "introduction"),
             _marked(new_code_cell("import labkit"), "import"),
             *(cell for name in names(lab) for cell in _cells(read(name)))]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def _cells(asked: Exercise) -> list[nbformat.NotebookNode]:
    file = f"{asked.name}.cu"
    test = f'found = labkit.grade("{asked.name}", "{file}")\nassert found.passed, found.idea'
    return [_marked(new_markdown_cell(f"## {asked.title}\n\n{asked.task.strip()}"), f"{asked.name}-task"),
            _marked(new_code_cell(f"%%writefile {file}\n{asked.solution.read_text(encoding='utf-8').rstrip()}"),
                    f"{asked.name}-answer", solution=True),
            _marked(new_code_cell(test), asked.name, grade=True)]


def _marked(cell: nbformat.NotebookNode, name: str, solution: bool = False, grade: bool = False) -> nbformat.NotebookNode:
    """The cell as nbgrader knows it: its answers are the learner's to edit, and all others come from the source again."""
    cell.id = name[:64]
    cell.metadata["nbgrader"] = {"schema_version": 3, "grade_id": name, "solution": solution, "grade": grade, "task": False,
                                 "locked": not solution, **({"points": 1} if grade else {})}
    return cell
