"""`labkit.reuse`: how often each sector of the input is loaded."""

import pytest

import labkit
from labkit import Case


def test_a_copy_and_a_transpose_load_each_sector_once_and_strides_more_often(session):
    rows = labkit.reuse("reuse", [Case("copy", 1, (1 << 14,)), Case("copy", 3, (1 << 14,)), Case("transpose", 3, (96, 64))],
                        title="Loaded")
    assert [row["kernel"] for row in rows] == ["copy v1", "copy v3", "transpose v3"]
    assert [row["sectors of the input"] for row in rows] == [4 * (1 << 14) // 32] * 2 + [4 * 96 * 64 // 32]
    assert [row["times each"] for row in rows] == [1, 8, 1]  # in v3 the lanes are eight elements, one sector, apart
    assert [row["fewer than the first, %"] for row in rows] == [0, -700, 0]
    assert session().tables["reuse"]["exact"]


def test_cases_are_validated():
    with pytest.raises(ValueError, match="reuse: cases has to be a list of labkit.Case"):
        labkit.reuse("reuse", [], title="Loaded")
    with pytest.raises(ValueError, match="has to be a list of labkit.Case"):
        labkit.reuse("reuse", Case("copy", 1, (4,)), title="Loaded")
