"""Orders of threads and blocks on the host backend, and what `labkit.schedules` says of a kernel that depends on them."""

import os

import pytest
import torch
from host_build import call, library

import labkit
from labkit import ordering
from labkit.launching import Launch


def in_order(order, kernel, blocks, threads, monkeypatch):
    if order:
        monkeypatch.setenv(ordering.VARIABLE, order)
    y, count = torch.full((blocks * threads,), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    assert call(getattr(library("ordered"), f"run_{kernel}"), y, count, blocks, threads) == 0
    assert count == blocks * threads
    return y.tolist()


@pytest.mark.parametrize("kernel", ["order_of_threads", "order_after_barrier", "after_shuffle"])
@pytest.mark.parametrize("threads", [1, 32, 100, 1024])
def test_forward_and_reverse(kernel, threads, monkeypatch):
    threads = threads if kernel != "after_shuffle" else max(32, threads // 32 * 32)
    assert in_order("forward", kernel, 1, threads, monkeypatch) == list(range(threads))
    expected = list(range(threads))[::-1]
    if kernel == "after_shuffle" and threads > 32:  # a warp goes on when its own lanes have come
        expected = [w * 32 + lane for w in reversed(range(threads // 32)) for lane in reversed(range(32))]
    assert in_order("reverse", kernel, 1, threads, monkeypatch) == expected


@pytest.mark.parametrize("threads", [33, 100, 256, 1024])
def test_a_shuffle_runs_each_thread_once_and_warps_together(threads, monkeypatch):
    orders = {}
    for seed in "123":
        got = in_order(seed, "order_of_threads", 1, threads, monkeypatch)
        assert sorted(got) == list(range(threads))
        assert got == in_order(seed, "order_of_threads", 1, threads, monkeypatch)
        warps = [thread // 32 for thread in got]
        assert len([w for w, before in zip(warps[1:], warps) if w != before]) == -(-threads // 32) - 1
        orders[seed] = tuple(got)
    assert len({*orders.values(), tuple(range(threads))}) == 4


def test_after_a_barrier_a_shuffle_is_another_one(monkeypatch):
    before = in_order("5", "order_of_threads", 1, 256, monkeypatch)
    after = in_order("5", "order_after_barrier", 1, 256, monkeypatch)
    assert sorted(after) == list(range(256)) and after != before


@pytest.mark.parametrize("blocks", [1, 2, 7, 64, 1000])
def test_blocks(blocks, monkeypatch):
    assert in_order("forward", "order_of_blocks", blocks, 1, monkeypatch) == list(range(blocks))
    assert in_order("reverse", "order_of_blocks", blocks, 1, monkeypatch) == list(range(blocks))[::-1]
    for seed in ("1", "2", "18446744073709551615"):
        assert sorted(in_order(seed, "order_of_blocks", blocks, 1, monkeypatch)) == list(range(blocks))
    if blocks >= 7:
        assert len({tuple(in_order(str(s), "order_of_blocks", blocks, 1, monkeypatch)) for s in range(1, 9)}) > 2


# ---- labkit.schedules ----

def test_a_right_kernel_gives_one_result(capsys):
    assert labkit.schedules("gelu", version=4, mode="forward_derivative", size=5000) == []
    assert "the same result in forward, reverse and 6 shuffled orders" in capsys.readouterr().out
    assert ordering.VARIABLE not in os.environ


class LastOneWins:
    """Stands for an operator whose kernel lets every thread write y[2, 1]."""

    def __init__(self, launcher):
        self.launcher = launcher

    def __call__(self, inputs, outputs):
        outputs[0].zero_()
        assert call(self.launcher, outputs[0].view(-1)[5:], 4, 64) == 0


def test_the_first_element_that_differs_is_named(monkeypatch, capsys):
    wrong = LastOneWins(library("ordered").run_who_is_last)
    launch = Launch(None, "forward", 1, [torch.zeros(4, 2, dtype=torch.int32)], [torch.empty(4, 2, dtype=torch.int32)])
    monkeypatch.setattr(Launch, "__call__", lambda self, inputs, outputs: wrong(inputs, outputs))
    monkeypatch.setattr(Launch, "output_names", ["y"])
    monkeypatch.setattr(Launch, "title", "last one wins")
    monkeypatch.setattr(ordering, "prepare", lambda *arguments: launch)
    found = labkit.schedules("last one wins", seeds=3)
    assert [d.order for d in found][0] == "reverse" and len(found) >= 3
    first = found[0]
    assert (first.output, first.index, first.value, first.forward, first.elements) == ("y", (2, 1), 0, 255, 1)
    shown = capsys.readouterr().out
    assert "the result depends on the order of threads" in shown
    assert "reverse: 1 elements of y differ, the first at [2, 1]: 0, and 255 in forward order" in shown


def test_a_nan_is_itself_and_a_negative_zero_is_not_zero(monkeypatch):
    values = {"forward": [torch.nan, 0.0], "reverse": [torch.nan, -0.0]}
    launch = Launch(None, "forward", 1, [torch.zeros(2)], [torch.empty(2)])

    def run(self, inputs, outputs):
        outputs[0].copy_(torch.tensor(values.get(os.environ[ordering.VARIABLE], values["forward"])))

    monkeypatch.setattr(Launch, "__call__", run)
    monkeypatch.setattr(Launch, "output_names", ["y"])
    monkeypatch.setattr(Launch, "title", "two values")
    monkeypatch.setattr(ordering, "prepare", lambda *arguments: launch)
    difference, = labkit.schedules("two values", seeds=2)
    assert (difference.order, difference.index) == ("reverse", (1,))


def test_a_launch_that_fails_in_one_order_says_which(monkeypatch):
    launch = Launch(None, "forward", 1, [torch.zeros(2)], [torch.empty(2)])

    def run(self, inputs, outputs):
        if os.environ[ordering.VARIABLE] == "2":
            raise RuntimeError("the launch failed")

    monkeypatch.setattr(Launch, "__call__", run)
    monkeypatch.setattr(Launch, "output_names", ["y"])
    monkeypatch.setattr(ordering, "prepare", lambda *arguments: launch)
    with pytest.raises(RuntimeError, match="schedules, order 2: the launch failed"):
        labkit.schedules("fails")
    assert ordering.VARIABLE not in os.environ
