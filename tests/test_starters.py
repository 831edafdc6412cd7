"""Starters are what nbgrader makes of the solutions; these tests need workshop/requirements.txt."""

import pytest

from labkit import exercises, starters

pytest.importorskip("nbgrader", reason="needs workshop/requirements.txt")


@pytest.mark.parametrize("name", exercises.names())
def test_a_starter_is_what_its_solution_gives(name):
    asked = exercises.read(name)
    derived = starters.derived(asked.solution.read_text(encoding="utf-8"))
    assert asked.starter.read_text(encoding="utf-8") == derived, "run python -m labkit exercises"


def test_a_starter_is_derived_only_from_a_solution_that_is_marked():
    assert starters.derived("a\n  // BEGIN SOLUTION\n  b\n  // END SOLUTION\nc") == f"a\n  {starters.STUB}\nc"
    with pytest.raises(RuntimeError, match="no \"BEGIN SOLUTION\""):
        starters.derived("a")
    with pytest.raises(RuntimeError, match="no end solution"):
        starters.derived("// BEGIN SOLUTION\nb")
