"""The exercises' solutions on a GPU: by nvcc, and not by the CPU's compiler, they are right as well, and fast enough."""

import pytest
import torch

import labkit
from labkit import exercises, grading
from labkit.operator import kernels_of

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", exercises.names())
def test_on_a_gpu_a_solution_is_right_too_and_fast_enough(name):
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
