"""A learner's calls: an exercise, its hints, and what a grade says of files of every kind."""

import dataclasses
import json
import math
import re

import pytest
from changed_solutions import changed

import labkit
from labkit import exercises, grading, machine
from labkit.build_errors import BuildError

needs_nvcc = pytest.mark.skipif(machine.find_nvcc() is None, reason="nvcc is not installed")


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A learner's folder that is empty."""
    monkeypatch.setenv("LABKIT_WORK", str(tmp_path / "mine"))
    return tmp_path / "mine"


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
    assert [each.check for each in found.seen if each.right is None] == ["written", "values", "stream", "nvcc"]
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


@pytest.mark.parametrize("line", [
    "int* q = nullptr; *q = 3;", "*(volatile int*)0 = 1;", "*(int*)8 = 1;", "int* q = nullptr; if (i >= n) return; *q = 3;",
    "float* q = nullptr; if (i >= n) return; y[i] = *q; return;",
    "if (i >= n) return; struct { int a[40]; }* q = nullptr; q->a[20] = 1;",
    "if (i >= n) return; x = nullptr;", "int* q = nullptr; if (i >= n) return; atomicAdd(q, 1);",
    "float4* q = nullptr; if (i >= n) return; *q = float4{1, 2, 3, 4};"])
def test_a_null_pointer_is_named_also_where_the_compiler_sees_that_it_is_one(tmp_path, line):
    solution = exercises.read("tail_guard").solution.read_text()
    (tmp_path / "tail_guard.cu").write_text(solution.replace("if (i >= n) return;", line))
    found = labkit.grade("tail_guard", tmp_path / "tail_guard.cu", show=False)
    assert found.failed.check == "bounds" and "of block (0,0,0) follows a null pointer" in found.failed.words


@pytest.mark.parametrize("file", [
    lambda text: text[text.index("#include"):], lambda text: "/* mine */\n" + text, lambda text: "\ufeff" + text,
    lambda text: text.replace("\n", "\r\n"), lambda text: text.replace("// BEGIN", "// caf\xe9"),
    lambda text: text.replace("reverse", "turn")],
    ids=["no header", "a comment before it", "byte order mark", "CRLF", "Latin-1", "another name"])
def test_a_right_file_passes_however_it_is_kept_and_whatever_its_comments_and_names_are(workplace, file):
    workplace.mkdir()
    text = file(exercises.read("barrier").solution.read_text(encoding="utf-8"))
    (workplace / "barrier.cu").write_bytes(text.encode("latin-1" if "caf" in text else "utf-8"))
    assert labkit.grade("barrier").failed is None


@pytest.mark.parametrize("text", ["", "const char* other_forward() { return nullptr; }"])
def test_a_file_without_the_function_that_is_called_is_told_its_name(workplace, text):
    workplace.mkdir()
    (workplace / "barrier.cu").write_text(text)
    words = labkit.grade("barrier").failed.words
    assert words == "the operator calls stencil_forward, and your file has none with the starter's parameters"


@pytest.mark.parametrize("words", ["copy: compiler: there is none. To mend it: install g++.", "tracing needs g++; ..."])
def test_what_this_machine_lacks_is_raised_and_is_no_fault_of_the_file(monkeypatch, words):
    def refused(*args, **kwargs):
        raise BuildError(words)

    monkeypatch.setattr(grading, "load", refused)
    with pytest.raises(BuildError, match=re.escape(words)):
        grading.grade("barrier", exercises.read("barrier").solution, show=False)


def test_a_semicolon_that_is_missing_after_return_is_an_error_as_it_is_to_nvcc(tmp_path):
    file = tmp_path / "tail_guard.cu"
    file.write_text(exercises.read("tail_guard").solution.read_text().replace("if (i >= n) return;", "if (i >= n) return"))
    assert "tail_guard.cu:16:" in grading.grade("tail_guard", file, show=False).failed.words


def test_after_a_launch_that_never_ends_no_other_is_waited_for(monkeypatch, tmp_path):
    from labkit import apart

    asked, begun = exercises.read("tail_guard"), []
    monkeypatch.setattr(apart, "LIMIT", 2.0)
    monkeypatch.setattr(grading, "launched_apart", lambda launches: begun.append(1) or apart.launched_apart(launches))
    file = tmp_path / "tail_guard.cu"
    file.write_text(asked.solution.read_text().replace("y[i] = fabsf(x[i]);", "while (true) y[i] = fabsf(x[i]);"))
    failed = grading.grade("tail_guard", file, show=False).failed
    assert failed.check == "ends" and len(begun) == 1 < len(asked.launches)
    assert "labkit.trace" not in failed.words and "process goes on" not in failed.words


def test_what_a_kernel_prints_is_shown_up_to_a_limit(capsys, tmp_path):
    file, text = tmp_path / "tail_guard.cu", exercises.read("tail_guard").solution.read_text()
    for times, lines in (1, range(514, 515)), (2000, range(100_000, 200_000)):  # 256 + 257 + 1 threads
        file.write_text(text.replace("y[i] =", f'for (int k = 0; k < {times}; ++k) printf("at %d\\n", int(i));\n    y[i] ='))
        found = grading.grade("tail_guard", file)
        assert found.passed and len(found.printed.splitlines()) in lines and len(found.printed) <= 1 << 20
        told = capsys.readouterr().out.partition("Your kernel printed:\n  at ")[2].splitlines()
        assert sum(line.startswith("  at ") for line in told) == 39 and told[-1].endswith(" lines more")


def test_a_word_in_a_comment_is_no_fence(tmp_path):
    asked = exercises.read("absmax")
    file = tmp_path / "absmax.cu"
    file.write_text(asked.solution.read_text().replace("__threadfence();", "// __threadfence();"))
    assert grading.grade("absmax", file, show=False).failed.words == asked.needs["races"]["words"]


@needs_nvcc
@pytest.mark.parametrize("name, change, words", [
    ("pseudo_huber_gradient", {"__device__ float derivative": "float derivative"}, "pseudo_huber_gradient.cu(21)"),
    ("swiglu", {"to_element<T>(a / (1 + exp(-a)) * b)": "a / (1 + exp(-a)) * b"}, "swiglu.cu(21)"),
    ("rms", {"value = to_compute(row[c]);": "value = row[c];"}, "rms.cu(17)")],
    ids=["a function for the CPU", "a float stored as 16 bits", "16 bits taken for a float"])
def test_what_nvcc_alone_refuses_is_refused_with_its_line(tmp_path, name, change, words):
    file = tmp_path / f"{name}.cu"
    file.write_text(changed(name, change), encoding="utf-8")
    found = grading.grade(name, file, show=False)
    assert found.failed.check == "nvcc" and words in found.failed.words and found.idea == grading.IDEAS["nvcc"]


def test_without_nvcc_the_rest_is_graded(monkeypatch):
    monkeypatch.setattr(machine, "find_nvcc", lambda: None)
    monkeypatch.setattr(machine, "nvcc_version", lambda: None)
    found = grading.grade("barrier", exercises.read("barrier").solution, show=False)
    assert found.passed and [(each.check, each.words) for each in found.seen if each.right is None] == [
        ("nvcc", "there is no nvcc here (on Linux the set-up installs it)")]


@pytest.mark.parametrize("name", ["absmax", "silu_both", "vectors_and_rest"])
def test_a_grade_is_the_same_again(name):
    asked = exercises.read(name)
    for file in (asked.solution, asked.starter):
        first, second = (grading.grade(name, file, show=False) for _ in range(2))
        if machine.backend() == "cuda":  # where the time is measured, which other words tell each time
            first, second = (dataclasses.replace(grade, seen=[each for each in grade.seen if each.check != "time"])
                             for grade in (first, second))
        assert first == second


def test_a_file_that_appears_in_the_meantime_is_not_written_over(workplace, monkeypatch):
    workplace.mkdir()
    file = workplace / "barrier.cu"
    file.write_text("mine")
    monkeypatch.setattr(type(file), "exists", lambda path: False)
    with pytest.raises(FileExistsError):
        labkit.exercise("barrier")
    assert file.read_text() == "mine"


@pytest.mark.parametrize("kept", ["", "{", "[1]", '{"barrier": "two"}'])
def test_hints_begin_anew_where_what_was_told_cannot_be_read(workplace, capsys, kept):
    workplace.mkdir()
    (workplace / "hints.json").write_text(kept)
    labkit.hint("barrier")
    assert "Hint 1 of 3" in capsys.readouterr().out and json.loads((workplace / "hints.json").read_text()) == {"barrier": 1}


def test_what_no_exercise_is_called_is_refused_with_those_that_there_are():
    for call in (labkit.exercise, labkit.hint, labkit.solution, labkit.grade):
        with pytest.raises(LookupError, match="there is no exercise 'nothing'; there are .*barrier"):
            call("nothing")
        with pytest.raises(LookupError, match="^there is no exercise 'bariers'; did you mean 'barrier'[?]$"):
            call("bariers")


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


@pytest.mark.parametrize("share, others, right", [(0.9, None, True), (0.7, None, False), (0.7, "12% busy", None),
                                                  (0.9, "12% busy", True)])
def test_an_answer_that_is_slow_beside_other_processes_is_not_judged(share, others, right):
    judged, words = grading._fast_enough(share, 0.8, "forward, 8 float32", others)
    assert judged is right and f"{share:.0%} of the speed of a copy; at least 80%" in words
    assert ("not judged: 12% busy" in words) == (right is None)


@pytest.mark.parametrize("got, wanted, words", [(1.5, 2, "1.5, and has to be 2"), (math.nan, 1, "nan, and has to be 1"),
                                                (1 + 2**-30, 1, "1.0000000009313226, and has to be 1")])
def test_two_numbers_that_differ_are_told_in_so_many_digits_that_it_shows(got, wanted, words):
    assert grading._told_apart(got, wanted) == words


@pytest.mark.parametrize("change, words", [
    ({"hints": None}, "lacks hints"), ({"extra": 1}, "has extra, which nothing reads"),
    ({"limits": {"speed": 1}}, "limits names 'speed'"), ({"needs": {"fence": {}}}, "needs names 'fence'"),
    ({"ideas": {"race": "x"}}, "ideas names 'race'"),
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
