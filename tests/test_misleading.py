"""`timing_mistakes`, `against_nvbench` and `learning`: what holds without a GPU, and on one that they find what they say."""

import math

import pytest
import torch

import labkit
from labkit import REPOSITORY, learning_curves, machine, misleading, nvbench_agreement

on_cpu = pytest.mark.skipif(machine.gpu() is not None, reason="there is a GPU")


@on_cpu
def test_without_a_gpu_nothing_is_timed(session, capsys):
    gelu = labkit.load("gelu")
    assert labkit.timing_mistakes("mistakes", gelu) == labkit.against_nvbench("nvbench") == []
    assert capsys.readouterr().out.count("there is no GPU here, and nothing is recorded") == 2 and session().tables == {}


def test_few_repeats_spread_further_and_a_mean_follows_what_is_far_off():
    samples = [100.0] * 900
    samples[200] = 1000.0  # where the third group of each size begins
    rows = misleading.spreads(samples, sizes=(1, 3, 100))
    assert [row["repeats"] for row in rows] == [1, 3, 100]
    assert [row["largest median, µs"] for row in rows] == [1000, 100, 100]
    assert [row["largest mean, µs"] for row in rows] == [1000, 400, 109]
    assert [(row["median off by at most, %"], row["mean off by at most, %"]) for row in rows] == [(900, 900), (0, 300), (0, 9)]
    assert all(row["least median, µs"] == row["least mean, µs"] == 100 for row in rows)
    with pytest.raises(ValueError, match="899 samples are not enough for 9 groups of 100"):
        misleading.spreads(samples[1:])


def test_the_kernels_for_nvbench_are_operators_with_these_modes_and_are_enough():
    assert len(nvbench_agreement.KERNELS) >= 6
    for kernel in nvbench_agreement.KERNELS.values():
        operator = labkit.load(kernel.operator, backend="host", launch=False)
        assert kernel.version in operator.versions and kernel.dtype in operator.reference.DTYPES
        names, outputs, _ = operator.reference.MODES[kernel.mode]
        # bench holds two sets of inputs, and a result.
        assert (2 * len(names) + len(outputs)) * math.prod(kernel.shape) * kernel.dtype.itemsize <= 4 * 2**30


def test_losses_are_compared_with_the_first_variants(session):
    def make_step():
        losses = iter([4.0 * 0.9**k for k in range(20)])
        return lambda activation: torch.tensor(next(losses)) * activation(torch.ones(()))

    rows = labkit.learning("learning", {"right": lambda x: x, "off": lambda x: 1.01 * x, "broken": lambda x: x * math.nan},
                           make_step, "A stub", steps=20)
    right, off, broken = rows
    assert right["final loss"] == pytest.approx(sum(4 * 0.9**k for k in range(10, 20)) / 10, abs=1e-4)
    assert (right["difference, %"], off["difference, %"], off["largest at a step, %"]) == (0, 1, 1)
    assert broken == {"variant": "broken", "final loss": None, "difference, %": None, "largest at a step, %": None}
    assert session().tables["learning_curves"]["series"]["broken"] == [None] * 20
    with pytest.raises(ValueError, match=f"steps is 5; it takes at least {learning_curves.LAST}"):
        labkit.learning("learning", {}, make_step, "A stub", steps=5)


def test_the_lab_counts_the_kernels_that_its_calls_bring():
    from labkit import sources

    texts = [sources.notebook("07_verify_and_benchmark").read_text(encoding="utf-8"),
             (REPOSITORY / "labs" / "faults.py").read_text(encoding="utf-8")]
    brought = {place for call, places in sources._BROUGHT.items() for place in places
               if any(call.search(text) for text in texts)}
    loaded = {f"kernels/{name}" for text in texts for name in sources._LOAD.findall(text)}
    assert {"kernels/copy", "kernels/stencil", "kernels/transpose", "kernels/row_sum", "kernels/gelu"} <= brought | loaded


# -- on a GPU -----------------------------------------------------------------------------------------------

@pytest.mark.gpu
def test_bench_agrees_with_nvbench_within_three_per_cent(session):
    rows = labkit.against_nvbench("nvbench")
    if not rows:
        pytest.skip("cuda-bench is not installed")
    assert len(rows) >= 6 and [row for row in rows if not abs(row["difference, %"]) <= 3] == []


@pytest.mark.gpu
def test_each_mistake_misleads(session):
    rows = {row["mistake"]: row["gives, µs"] / row["right, µs"]
            for row in labkit.timing_mistakes("mistakes", labkit.load("gelu"))}
    assert rows["no synchronisation"] < 0.9 and rows["data left in L2"] < 0.9 and rows["a fast wrong answer"] < 0.9
    assert rows["the first call counted"] > 10 and rows["launches taken for the kernel"] > 2
    assert rows["the input made inside the loop"] > 1.2


@pytest.mark.gpu
def test_a_gpu_kills_what_the_host_kills(session, monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "labs"))
    import faults

    rows = labkit.kills("kills", faults.SHIPPED, "Faults", times=2)
    assert len(rows) == len(faults.SHIPPED)
