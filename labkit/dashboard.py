"""The dashboard of a workshop: who passed which exercise, read from the gradebook that nbgrader keeps."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

PASSED, TRIED, NOTHING = "passed", "tried", ""
_COLOURS = {PASSED: "background: #cdebd0; color: #123", TRIED: "background: #fde9b8; color: #123"}
_PAGE = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Who passed what</title>
<style>
  :root {{ color-scheme: light dark }}
  body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem }}
  table {{ border-collapse: collapse }}
  th, td {{ border: 1px solid #8886; padding: .3rem .6rem; text-align: left }}
</style>
<h1>Who passed what</h1>
<p>{said}</p>
{table}
</html>
"""


def tell(course: Path, html: Path | None = None) -> int:
    """Prints the dashboard of a course's folder, and writes it as one HTML file that needs no other; returns the exit status:
    1 where the folder has no gradebook.
    """
    gradebook = course / "gradebook.db"
    if not gradebook.is_file():  # nbgrader would make an empty one
        print(f"There is no {gradebook}. In {course}, nbgrader generate_assignment LAB makes it, and nbgrader autograde LAB "
              "fills it.", file=sys.stderr)
        return 1
    found = passed(gradebook)
    said = summary(found)
    with pd.option_context("display.width", None, "display.max_columns", None, "display.max_rows", None):
        print(found.to_string() if found.size else "", said, sep="\n")
    if html:
        html.write_text(page(found, said), encoding="utf-8")
        print(f"wrote {html}")
    return 0


def passed(gradebook: Path) -> pd.DataFrame:
    """PASSED, TRIED or NOTHING: a row a learner, a column an exercise, as (lab, exercise), in the order of the notebooks.

    An exercise is passed where nbgrader gave all of its points, by machine or by hand, to the answer that it graded last; it is
    tried where an answer was graded and got less.
    """
    from nbgrader.api import Gradebook  # half a second of import

    rows, columns = {}, []
    with Gradebook(f"sqlite:///{gradebook.resolve()}", course_id="") as book:  # it would add a course that it does not find
        rows |= {student.id: {} for student in book.students}
        for assignment in book.assignments:
            columns += [(assignment.name, cell.name) for notebook in assignment.notebooks for cell in notebook.grade_cells]
            for submission in assignment.submissions:
                rows[submission.student_id] |= {
                    (assignment.name, grade.name): PASSED if grade.score >= grade.max_score else TRIED
                    for notebook in submission.notebooks for grade in notebook.grades
                    if grade.auto_score is not None or grade.manual_score is not None}
    columns = pd.MultiIndex.from_tuples(columns, names=["lab", "exercise"]) if columns else pd.MultiIndex.from_arrays([[], []])
    return pd.DataFrame([[row.get(column, NOTHING) for column in columns] for row in rows.values()],
                        index=pd.Index(rows, name="learner", dtype=object), columns=columns).sort_index(axis=0)


def summary(found: pd.DataFrame) -> str:
    """How many have passed how much, in a sentence."""
    learners, exercises = found.shape
    good = found == PASSED
    said = f"Learners: {learners}. Exercises: {exercises}. Passed: {int(good.to_numpy().sum())} of {found.size}."
    if found.size and not good.all(axis=None):
        hardest = good.sum().idxmin()
        said += f" By fewest: {hardest[1]}, by {int(good[hardest].sum())}."
    return said


def page(found: pd.DataFrame, said: str) -> str:
    """The dashboard as one HTML page. Names that learners gave themselves are text there, whatever they hold."""
    styled = found.style.format(escape="html").format_index(escape="html").format_index(escape="html", axis=1)
    return _PAGE.format(said=said, table=styled.map(lambda state: _COLOURS.get(state, "")).to_html())
