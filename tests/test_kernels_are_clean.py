"""Every version and mode of every kernel of this book: no fault under trace, one result in every order of threads."""

import pytest
import torch

import labkit
from labkit.operator import kernels, listed_versions, python_part, source_path

# Sizes with tails, in float32 and in a 16-bit type: one that fills blocks only partly, one with several blocks, and others for
# paths of their own.
SIZES = {"gelu": [(1003,), (8195,)], "copy": [(1003,), (8195,)], "transpose": [(33, 70), (100, 31)],
         "row_sum": [(3, 33), (2, 1000)], "geometry": [(1003,), (8195,)], "stencil": [(33, 70), (100, 31)],
         "fold": [(3, 33), (9, 70)], "total": [(3, 33), (5, 1000)],
         "softmax": [(5, 33), (2, 1544), (6, 264), (2, 1541), (1, 8195)],
         "add_norm": [(5, 33), (3, 1544), (6, 264), (2, 1541), (1, 8195)]}
SHARED = {("add_norm", "backward")}  # one kernel in all versions
NAMES = sorted(path.parent.name for path in kernels().glob("*/*.cu") if path.stem == path.parent.name)


def test_every_operator_has_its_sizes():
    assert sorted(SIZES) == NAMES


def versions_and_modes(name):
    versions = list(listed_versions(source_path(name).read_text()))
    return [(version, mode) for version in versions for mode in python_part(name, "reference").MODES
            if (name, mode) not in SHARED or version == versions[-1]]


@pytest.mark.parametrize("name", NAMES)
def test_traces_clean(name):
    for version, mode in versions_and_modes(name):
        for size in SIZES[name]:
            for dtype in {torch.float32, torch.bfloat16} & set(python_part(name, "reference").DTYPES):
                found = labkit.trace(name, version, mode, size=size, dtype=dtype, show=False)
                assert found.findings == [], (found.title, found.findings)
                assert found.total("writes").lanes > 0


@pytest.mark.parametrize("name", NAMES)
def test_gives_one_result_in_every_order(name):
    for version, mode in versions_and_modes(name):
        assert labkit.schedules(name, version, mode, size=SIZES[name][1], dtype=torch.float32, seeds=3) == []
