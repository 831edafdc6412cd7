"""The exercises: each starter fails, each solution passes, each wrong answer fails for the reason that is stated."""

import dataclasses
import math

import nbformat
import pytest
from changed_solutions import changed

from labkit import exercises, grading, machine, starters
from labkit.cubin import compile_cubin
from labkit.operator import kernels_of

NAMES = exercises.names()
needs_nvcc = pytest.mark.skipif(machine.find_nvcc() is None, reason="nvcc is not installed")
ANSWERS = [(name, wrong.what) for name in NAMES for wrong in exercises.read(name).wrong]


@pytest.mark.parametrize("name", NAMES)
def test_a_starter_fails(name):
    assert not grading.grade(name, exercises.read(name).starter, show=False).passed


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_passes_every_check(name):
    found = grading.grade(name, exercises.read(name).solution, show=False)
    assert found.passed and found.idea is None, found.failed
    assert all(each.right or each.check in ("nvcc", "time") for each in found.seen)


@pytest.mark.parametrize("name, what", ANSWERS)
def test_a_wrong_answer_fails_for_the_reason_that_is_stated(name, what, tmp_path):
    asked = exercises.read(name)
    answer = next(wrong for wrong in asked.wrong if wrong.what == what)
    file = tmp_path / f"{name}.cu"
    file.write_text(changed(name, answer.change), encoding="utf-8")
    found = grading.grade(name, file, show=False)
    assert found.failed and found.failed.check == answer.fails, found.failed
    assert found.idea == asked.ideas[answer.fails], "the exercise has no idea of its own for it"


# {exercise: {what another right answer does: {old: new} in the solution}}
RIGHT = {
    "one_pass": {"a branch for each part": {
        "y[i] = fminf(fmaxf(x[i] / 6 + 0.5f, 0.0f), 1.0f);":
            "const float t = x[i] / 6 + 0.5f;\n    if (t < 0) y[i] = 0; else if (t > 1) y[i] = 1; else y[i] = t;"},
        "saturated": {"fminf(fmaxf(x[i] / 6 + 0.5f, 0.0f), 1.0f)": "__saturatef(fmaf(x[i], 1 / 6.0f, 0.5f))"}},
    "squared_relu_gradient": {"a branch that stores 0": {
        "grad_x[i] = grad[i] * 2 * fmaxf(x[i], 0.0f);": "if (x[i] > 0) grad_x[i] = 2 * x[i] * grad[i]; else grad_x[i] = 0;"}},
    "pseudo_huber_gradient": {"in double, and infinities apart": {
        "    const float inverse = 1 / x;  // 0 where x is infinite\n": "    const double w = x;\n",
        "copysignf(1 / sqrtf(1 + inverse * inverse), x)": "isinf(x) ? copysignf(1.0f, x) : float(w / sqrt(1 + w * w))"}},
    "fixed_grid": {"a stretch for each block": {
        "i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step":
            "each = divide_up(n, gridDim.x), i = blockIdx.x * each + threadIdx.x; i < min(n, (blockIdx.x + 1) * each); "
            "i += blockDim.x"}},
    "every_type": {"asked in another way": {"return launch_error();": "return cudaGetLastError() ? \"refused\" : nullptr;"}},
    "any_block": {"powers of two after a first step": {
        "    for (int left = THREADS; left > 1;) {": "    int two = 1;\n    while (2 * two < THREADS) two *= 2;\n"
                                                     "    for (int left = THREADS; left > 1;) {",
        "(left + 1) / 2;  // the larger one where `left` is odd": "left == THREADS ? two : left / 2;"}},
    "swiglu": {"a product of three, by faster functions": {
        "a / (1 + exp(-a)) * b": "a * __fdividef(1.0f, 1 + __expf(-a)) * b"}},
    "other_diagonal": {"exclusive or in place of padding": {
        "tile[TILE][TILE + 1]": "tile[TILE][TILE]", "tile[k][threadIdx.x] =": "tile[k][threadIdx.x ^ k] =",
        "tile[threadIdx.x][k];": "tile[threadIdx.x][k ^ threadIdx.x];"}},
    "differences": {"a last vector that nothing follows, one by one": {"first + SIZE <= n": "first + SIZE < n"}},
    "row_max": {"by exchange": {"__shfl_down_sync": "__shfl_xor_sync"}},
    "log_softmax": {"down, and then to all": {
        "sum += __shfl_xor_sync(0xffffffff, sum, s);":
            "sum += __shfl_down_sync(0xffffffff, sum, s);\n    sum = __shfl_sync(0xffffffff, sum, 0);"}},
    "absmax": {"a fence of all threads, and atomicInc": {
        "        sums[blockIdx.x] = most;\n        __threadfence();  // others see it before they see the ticket\n": "",
        "    if (threadIdx.x == 0) {\n        is_last": "    if (threadIdx.x == 0) sums[blockIdx.x] = most;\n"
                                                         "    __threadfence();\n    if (threadIdx.x == 0) {\n        is_last",
        "atomicAdd(tickets, 1u)": "atomicInc(tickets, gridDim.x)"}},
    "clip": {"the smaller of two": {"if (squares > 1) scale = 1 / sqrt(squares);": "scale = min(F(1), rsqrt(squares));"}},
    "swizzle": {"a rotation": {"at ^= row;": "at = (col + row) % TILE;"}},
    "log_sum_exp": {"scaled only where the maximum grows": {
        "const F larger = max(most, v);": "const F larger = max(most, v), before = most;\n        most = larger;",
        "sum = sum * exp(most - larger) + exp(v - larger);\n        most = larger;":
            "if (larger > before) sum = sum * exp(before - larger) + 1;\n        else sum += exp(v - most);"}},
}


@pytest.mark.parametrize("name, what", [(name, what) for name, answers in RIGHT.items() for what in answers])
def test_another_right_answer_passes(name, what, tmp_path, monkeypatch):
    monkeypatch.setattr(grading, "_for_a_gpu", lambda asked: (None, "nvcc is asked about each solution"))
    file = tmp_path / f"{name}.cu"
    file.write_text(changed(name, RIGHT[name][what]), encoding="utf-8")
    assert grading.grade(name, file, show=False).failed is None


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_keeps_nan_or_the_task_says_that_there_is_none(name, monkeypatch):
    asked = exercises.read(name)
    monkeypatch.setattr(grading, "read", lambda name: dataclasses.replace(asked, numbers=(math.nan,), limits={}))
    kept = grading.grade(name, asked.solution, show=False).passed
    assert kept != ("No element is NaN" in asked.task)


@pytest.mark.filterwarnings("ignore:var")  # of no elements
@pytest.mark.parametrize("name", [name for name in NAMES if exercises.read(name).lab >= "05"])
def test_from_the_lab_on_that_teaches_it_a_solution_takes_an_array_of_no_elements(name, monkeypatch):
    asked = exercises.read(name)
    empty = dataclasses.replace(asked.launches[0], size=(0, *asked.launches[0].size[1:]))
    monkeypatch.setattr(grading, "read", lambda name: dataclasses.replace(asked, launches=(empty,), limits={}, numbers=()))
    if name == "absmax":  # which has no value there, as in PyTorch
        with pytest.raises(ValueError, match="no identity|reduction dim"):
            grading.grade(name, asked.solution, show=False)
    else:
        assert grading.grade(name, asked.solution, show=False).failed is None


@needs_nvcc
@pytest.mark.parametrize("name", NAMES)
def test_nvcc_takes_a_solution_for_the_oldest_gpu_without_a_warning_and_keeps_all_in_registers(name):
    asked = exercises.read(name)
    with kernels_of(grading._folder(asked, asked.solution.read_text(encoding="utf-8"))):
        cubin = compile_cubin(asked.operator, arch=grading._OLDEST, without=["-lineinfo"])
    assert "warning" not in cubin.log and cubin.kernels
    reduces_large_angles = name == "snake"  # which sin does on the stack
    assert [k for k in cubin.kernels if k.spill_stores or k.spill_loads or k.stack and not reduces_large_angles] == []


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
