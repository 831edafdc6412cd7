"""The exercises: each starter fails, each solution passes, each wrong answer fails for the reason that is stated; the calls."""

import dataclasses
import json
import math

import nbformat
import pytest
import torch

import labkit
from labkit import exercises, grading, starters
from labkit.operator import kernels_of

NAMES = exercises.names()
ANSWERS = [(name, wrong.what) for name in NAMES for wrong in exercises.read(name).wrong]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A learner's folder that is empty."""
    monkeypatch.setenv("LABKIT_WORK", str(tmp_path / "mine"))
    return tmp_path / "mine"


def changed(text, change):
    """The text with each of {old: new} made, which has to be possible once."""
    for old, new in change.items():
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the solution"
        text = text.replace(old, new)
    return text


# -- each exercise ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", NAMES)
def test_a_starter_fails(name):
    assert not grading.grade(name, exercises.read(name).starter, show=False).passed


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_passes_every_check(name):
    found = grading.grade(name, exercises.read(name).solution, show=False)
    assert found.passed and found.idea is None, found.failed
    assert all(each.right or each.check == "time" for each in found.seen)


@pytest.mark.parametrize("name, what", ANSWERS)
def test_a_wrong_answer_fails_for_the_reason_that_is_stated(name, what, tmp_path):
    asked = exercises.read(name)
    answer = next(wrong for wrong in asked.wrong if wrong.what == what)
    file = tmp_path / f"{name}.cu"
    file.write_text(changed(asked.solution.read_text(encoding="utf-8"), answer.change), encoding="utf-8")
    found = grading.grade(name, file, show=False)
    assert found.failed and found.failed.check == answer.fails, found.failed
    assert found.idea == asked.ideas[answer.fails], "the exercise has no idea of its own for it"


@pytest.mark.parametrize("name", NAMES)
def test_an_exercise_has_hints_and_plausible_wrong_answers_and_belongs_to_a_lab(name):
    asked = exercises.read(name)
    assert len(asked.hints) >= 2 and len(asked.wrong) >= 2
    assert (exercises.REPOSITORY / "labs" / f"{asked.lab}.ipynb").is_file()
    said = " ".join([asked.task, *asked.ideas.values()])
    lines = [line.strip() for line in asked.solution.read_text(encoding="utf-8").splitlines()]
    begins, ends = (sum(f"{mark} SOLUTION" in line for line in lines) for mark in ("BEGIN", "END"))
    assert begins == ends >= 1
    taken = [line for line in lines if line not in asked.starter.read_text(encoding="utf-8") and "SOLUTION" not in line]
    assert not any(line in said for line in taken if len(line) > 8), "the task or an idea gives the solution away"


@pytest.mark.parametrize("lab", sorted(path.stem for path in (exercises.REPOSITORY / "labs").glob("[0-9]*.ipynb")))
def test_a_lab_ends_with_two_to_four_exercises_as_they_are_derived(lab):
    cells = nbformat.read(exercises.REPOSITORY / "labs" / f"{lab}.ipynb", as_version=4).cells
    derived = starters.cells(lab)
    assert 2 <= len(exercises.names(lab)) <= 4
    assert cells[-len(derived):] == derived, "run python -m labkit exercises"
    assert sum(starters.TAG in cell.metadata.get("tags", []) for cell in cells) == len(derived)


def test_there_are_at_least_28():
    assert len(NAMES) >= 28


# -- the calls -------------------------------------------------------------------------------------------------

def test_an_exercise_makes_the_learners_file_once_and_says_where_it_is(workplace, capsys):
    labkit.exercise("barrier")
    file = workplace / "barrier.cu"
    assert "barrier.cu" in capsys.readouterr().out and file.read_text() == exercises.read("barrier").starter.read_text()
    file.write_text("mine")
    labkit.exercise("barrier")
    assert file.read_text() == "mine" and "as you left it" in capsys.readouterr().out


def test_hints_come_one_at_a_time_and_the_last_names_the_solution(workplace, capsys):
    hints = exercises.read("barrier").hints
    for told in range(1, len(hints) + 2):
        labkit.hint("barrier")
        out = capsys.readouterr().out
        assert [hint in out for hint in hints] == [k < told for k in range(len(hints))]
        assert ("labkit.solution" in out) == (told >= len(hints))
    assert json.loads((workplace / "hints.json").read_text()) == {"barrier": len(hints)}
    labkit.solution("barrier")
    assert "__syncthreads();" in capsys.readouterr().out


def test_a_grade_names_the_first_fault_with_the_learners_file_and_the_missing_idea(workplace, capsys, session):
    with pytest.raises(FileNotFoundError, match=r'labkit.exercise\("barrier"\) makes it'):
        labkit.grade("barrier")
    labkit.exercise("barrier")
    capsys.readouterr()
    found = labkit.grade("barrier")
    out = capsys.readouterr().out
    assert found.failed.check == "races" and "barrier.cu:" in found.failed.words and "stencil" not in out
    assert [each.check for each in found.seen if each.right is None] == ["written", "values"]
    assert "✗ races" in out and f"Think of this: {exercises.read('barrier').ideas['races'].strip()}" in out
    assert session().notes[-1]["outcome"] == "not yet: races"


@pytest.mark.parametrize("text, check, words", [
    ("int x = ;", "builds", "barrier.cu:14:"), ("", "builds", ""),
    ("*(volatile int*)nullptr = 1;", "bounds", "a null pointer"), ("while (true) {}", "ends", "did not end"),
    ("__builtin_trap();", "ends", "ended its process by SIGILL")],
    ids=["does not compile", "nothing", "wild", "endless", "crash"])
def test_a_file_that_does_not_compile_crashes_or_never_ends_is_told_and_python_lives(workplace, monkeypatch, text, check,
                                                                                     words):
    from labkit import apart

    monkeypatch.setattr(apart, "LIMIT", 2.0)
    solution = exercises.read("barrier").solution.read_text()
    workplace.mkdir()
    (workplace / "barrier.cu").write_text(solution.replace("    __syncthreads();", f"    {text}") if text else "")
    found = labkit.grade("barrier")
    assert found.failed.check == check and words in found.failed.words


def test_what_no_exercise_is_called_is_refused_with_those_that_there_are():
    for call in (labkit.exercise, labkit.hint, labkit.solution, labkit.grade):
        with pytest.raises(LookupError, match="there is no exercise 'nothing'; there are .*barrier"):
            call("nothing")


def test_numbers_of_an_exercise_stand_first_in_its_inputs_and_an_infinity_that_is_wanted_is_right(monkeypatch, tmp_path):
    asked = exercises.read("softplus_tails")
    only = dataclasses.replace(asked, numbers=(-math.inf, math.inf), launches=asked.launches[:1])
    monkeypatch.setattr(grading, "read", lambda name: only)
    text = asked.solution.read_text(encoding="utf-8")
    file = tmp_path / "softplus.cu"
    for formula, element, words in (("x", 0, "is -inf, and has to be 0"), ("fmaxf(x, 0) + (x == INFINITY ? NAN : 0)", 1,
                                                                       "is nan, and has to be inf")):
        file.write_text(text.replace("fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)))", formula))
        assert f"y[{element}] {words}" in grading.grade("softplus_tails", file, show=False).failed.words
    assert grading.grade("softplus_tails", asked.solution, show=False).passed


def test_a_nan_that_is_wanted_is_right_and_a_number_in_its_place_is_not():
    asked = exercises.read("clamp")
    assert grading.grade("clamp", asked.solution, show=False).passed
    assert "y[0] is -1, and has to be nan" in grading.grade("clamp", asked.starter, show=False).failed.words


def test_inputs_are_those_that_given_of_the_reference_makes_of_the_drawn_ones(monkeypatch, tmp_path):
    asked = exercises.read("negate")  # of its arrays that of 1000 elements alone begins beside a multiple of 16 bytes
    file = tmp_path / "negate.cu"
    file.write_text(asked.solution.read_text(encoding="utf-8").replace("if (!aligned)", "if (false)"))
    for size, failed in ((1024, None), (1000, "ends")):
        launch = dataclasses.replace(asked.launches[0], size=(size,))
        monkeypatch.setattr(grading, "read", lambda name: dataclasses.replace(asked, launches=(launch,), limits={}))
        seen = grading.grade("negate", file, show=False).failed
        assert (seen and seen.check) == failed


def test_of_several_launches_the_one_that_ended_its_process_is_named(monkeypatch, tmp_path):
    asked = exercises.read("negate")
    file = tmp_path / "negate.cu"
    text = asked.solution.read_text(encoding="utf-8")
    file.write_text(text.replace("if (!aligned)", "if (n == 1001) __builtin_trap();\n    if (!aligned)"))
    launches = tuple(dataclasses.replace(asked.launches[0], size=(size,)) for size in (1000, 1001, 1002))
    monkeypatch.setattr(grading, "read", lambda name: dataclasses.replace(asked, launches=launches))
    failed = grading.grade("negate", file, show=False).failed
    assert failed.words.startswith("forward, 1001 float32: the launch ended its process by SIGILL")


def test_requests_are_counted_over_reads_and_writes_of_global_memory(monkeypatch):
    asked = exercises.read("one_pass")  # its last launch has 257 elements: nine warps that read once and write once
    for most, passed in ((18, True), (17, False)):
        monkeypatch.setattr(grading, "read", lambda name: dataclasses.replace(asked, limits={"requests": most}))
        found = next(each for each in grading.grade("one_pass", asked.solution, show=False).seen if each.check == "requests")
        assert found.right is passed and f"18 requests of global memory; at most {most}" in found.words


def test_an_output_that_nothing_writes_is_told_without_a_line():
    words = grading.grade("one_pass", exercises.read("one_pass").starter, show=False).failed.words
    assert words == "forward, 1 float32: output left unwritten: nothing writes `y`"


def test_an_exercise_of_a_gradient_alone_has_no_check_of_values():
    for name, checks in (("pseudo_huber_gradient", ["gradient"]), ("softplus_tails", ["values"]),
                         ("squared_relu_gradient", ["values", "gradient"])):
        found = grading.grade(name, exercises.read(name).solution, show=False)
        assert [each.check for each in found.seen if each.check in ("values", "gradient")] == checks


@pytest.mark.parametrize("got, wanted, words", [(1.5, 2, "1.5, and has to be 2"), (math.nan, 1, "nan, and has to be 1"),
                                                (1 + 2**-30, 1, "1.0000000009313226, and has to be 1")])
def test_two_numbers_that_differ_are_told_in_so_many_digits_that_it_shows(got, wanted, words):
    assert grading._told_apart(got, wanted) == words


@pytest.mark.parametrize("change, words", [
    ({"hints": None}, "lacks hints"), ({"extra": 1}, "has extra, which nothing reads"),
    ({"limits": {"speed": 1}}, "limits names 'speed'"), ({"ideas": {"race": "x"}}, "ideas names 'race'"),
    ({"wrong": [{"what": "x", "change": {}, "fails": "taste"}]}, "wrong names 'taste'")])
def test_an_exercise_that_cannot_be_is_refused_by_name(tmp_path, monkeypatch, change, words):
    import yaml

    said = yaml.safe_load((exercises.FOLDER / "barrier" / "exercise.yml").read_text()) | change
    folder = tmp_path / "barrier"
    folder.mkdir()
    (folder / "exercise.yml").write_text(yaml.safe_dump({key: value for key, value in said.items() if value is not None}))
    monkeypatch.setattr(exercises, "FOLDER", tmp_path)
    with pytest.raises(exercises.ExerciseError, match=f"exercises/barrier/exercise.yml:? {words}"):
        exercises.read("barrier")


# -- on a GPU --------------------------------------------------------------------------------------------------

@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu_a_solution_is_right_too_and_fast_enough(name):
    """By nvcc, and not by the CPU's compiler: what is graded is what a GPU would run."""
    asked = exercises.read(name)
    with kernels_of(grading._folder(asked, asked.solution.read_text(encoding="utf-8"))):
        operator = labkit.load(asked.operator, version=1, backend="cuda", launch=False)
        ran = []
        for launch in asked.launches:
            outputs = getattr(operator.ops, launch.mode)(
                *(each.to(operator.device) for each in grading._inputs(operator, asked, launch)), operator.latest)
            ran.append((launch, {"outputs": [each.cpu() for each in ([outputs] if torch.is_tensor(outputs) else outputs)]}))
        assert grading._values("values", operator, asked, ran)[1:] == (True, f"{len(ran)} launches agree with float64")
    found = grading.grade(name, asked.solution, show=False)
    assert found.passed and all(each.right for each in found.seen), found.failed
