"""Long sums in narrow types: the orders against NumPy, our kernel against a mutant that adds in its own type, tf32."""

import numpy
import pytest
import torch

import labkit
from labkit import summing
from labkit.verdict import CheckFailed


@pytest.fixture(scope="module")
def row_sum():
    return labkit.load("row_sum")


def test_one_after_another_rounds_after_every_addition():
    x = torch.rand(2, 1024, generator=torch.Generator().manual_seed(3)).half()
    found = summing.running_sums(x, torch.float16)
    expected = numpy.add.accumulate(x.numpy(), axis=1, dtype=numpy.float16)
    assert sorted(found) == [1 << k for k in range(11)]
    for n, sums in found.items():
        assert numpy.array_equal(sums.numpy(), expected[:, n - 1])


def test_a_float16_sum_stands_still_where_a_term_is_less_than_half_a_step():
    ones = torch.ones(1, 4096)
    assert summing.running_sums(ones, torch.float16)[4096].item() == 2048  # 2049 is no number of float16, and ties go to even
    assert summing.running_sums(ones, torch.bfloat16)[4096].item() == 256
    assert summing.tree_sum(ones.half()).item() == 4096


def test_a_tree_adds_what_one_after_another_loses():
    half_step = 2.0**-11  # from 1 to the next number of float16 it is twice that
    x = torch.tensor([[1.0, half_step, 0.0, half_step]], dtype=torch.float16)
    assert summing.running_sums(x, torch.float16)[4].item() == 1.0
    assert summing.tree_sum(x).item() == 1.0 + 2 * half_step
    assert summing.tree_sum(torch.tensor([[1.0, 0.0, half_step, 0.0]], dtype=torch.float16)).item() == 1.0  # and it rounds


def test_the_error_is_relative_and_a_root_mean_square():
    exact = torch.tensor([2.0, 4.0], dtype=torch.float64)
    assert summing.relative_error(torch.tensor([2.0, 4.0]), exact) == 0
    assert summing.relative_error(torch.tensor([2.2, 4.0]), exact) == pytest.approx(0.1 / 2**0.5, rel=1e-5)


def test_our_kernel_adds_in_float32_and_the_narrow_one_is_wrong(session, row_sum, monkeypatch):
    monkeypatch.setattr(summing, "LONGEST_CHAIN", 1 << 12)
    monkeypatch.setattr(summing, "LONGEST_TREE", 1 << 12)
    monkeypatch.setattr(summing, "LONGEST_ROW", 1 << 20)
    monkeypatch.setattr(summing, "TRIALS", 4)
    rows = {row["n"]: row for row in labkit.accumulated("sums", row_sum)}
    longest, half_ulp = rows[1 << 20], {"float16": 2**-11, "bfloat16": 2**-8}
    for kind in ("float16", "bfloat16"):
        assert longest[f"{kind}, float32 sum"] <= 100 * half_ulp[kind]  # rounded once
    # 4096 terms a thread, and a bfloat16 sum stands still at about 512 of them.
    assert longest["bfloat16, sum in its own type"] == pytest.approx(100 * (1 - 512 / 4096), abs=1)
    assert rows[256]["bfloat16, sum in its own type"] == pytest.approx(rows[256]["bfloat16, float32 sum"], rel=1e-3)
    curve = session().tables["sums"]["series"]
    assert curve["bfloat16, one after another"][-1] > 0.8 and curve["bfloat16, as a tree"][-1] < 0.01
    assert curve["float16 numbers, added in float32"][-1] <= 2**-11
    assert curve["float32, one after another"][-1] < 1e-6


def test_check_refuses_the_narrow_kernel(row_sum):
    narrow = labkit.mutant("row_sum", summing.VERSION, summing.OLD, summing.NEW)
    with pytest.raises(CheckFailed, match="row_sum v3"):
        labkit.check(narrow)


def test_tf32_is_a_gpus_and_the_setting_is_put_back(session, monkeypatch, capsys):
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    with summing.matmul_precision("tf32"):
        assert setting.fp32_precision == "tf32"
    assert setting.fp32_precision == before
    monkeypatch.setattr(labkit.machine, "backend", lambda: "host")
    assert labkit.matmul_errors("matmul") == [] and "nothing is recorded" in capsys.readouterr().out


@pytest.mark.gpu
def test_tf32_is_as_narrow_as_float16_and_wider_than_bfloat16(session):
    if not labkit.machine.native_bfloat16():
        pytest.skip("a GPU before compute capability 8.0 has no tf32")
    error = {row["inputs"]: row["relative error"] for row in labkit.matmul_errors("matmul", size=1024)}
    assert error["float32"] < 1e-5 and 1e-4 < error["tf32"] < error["bfloat16"]
    assert error["float16"] / 2 < error["tf32"] < 4 * error["float16"]  # 11 significant bits both; tf32 may cut them off
