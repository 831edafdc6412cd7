"""Every operator is checked whole, in all versions and modes: by a lab, which a fault ends, or else here."""

import ast

import pytest

import labkit
from labkit.labs import LABS
from labkit.operator import kernels
from labkit.sources import code_cells

NAMES = sorted(path.parent.name for path in kernels().glob("*/*.cu") if path.stem == path.parent.name)
# Where one call is not the whole: gradient.cuh is the same in all versions.
CALLS = {name: (f"labkit.check({name})",) for name in NAMES} | {
    "add_norm": ("labkit.check(add_norm, modes=['forward'])",
                 "labkit.check(add_norm, [add_norm.latest], modes=['backward'])")}


def checked_by(cells):
    """The operators that a lab of these code cells builds whole and checks whole, where nothing catches what `check` raises."""
    # Statements of a cell itself: not in a function that may not be called, nor in a try.
    statements = [one for cell in cells for one in ast.parse(cell).body if isinstance(one, (ast.Assign, ast.Expr))]
    called, assigned = {ast.unparse(one.value) for one in statements}, {ast.unparse(one) for one in statements}
    return {name for name, calls in CALLS.items()
            if called.issuperset(calls) and f"{name} = labkit.load('{name}')" in assigned}


BY_LABS = {name: lab.stem for lab in sorted(LABS.glob("*.ipynb")) for name in checked_by(code_cells(lab))}


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(BY_LABS)))
def test_every_version_of_what_no_lab_checks_matches_the_reference(name):
    labkit.check(labkit.load(name))


def test_the_check_of_a_lab_counts_where_it_is_whole_and_ends_the_lab():
    loaded = 'copy = labkit.load("copy")\n'
    assert checked_by([loaded, "_ = labkit.check(copy)"]) == checked_by([f"{loaded}labkit.check(copy)"]) == {"copy"}
    for call in ("labkit.check(copy, versions=[1])", "labkit.check(fold)", "def later():\n    labkit.check(copy)",
                 "try:\n    labkit.check(copy)\nexcept Exception:\n    pass", "# labkit.check(copy)"):
        assert checked_by([loaded, call]) == set(), call
    assert checked_by(['copy = labkit.load("copy", version=1)', "labkit.check(copy)"]) == set()
    forward, backward = CALLS["add_norm"]
    assert checked_by(['add_norm = labkit.load("add_norm")', forward]) == set()
    assert checked_by(['add_norm = labkit.load("add_norm")', forward, backward]) == {"add_norm"}
