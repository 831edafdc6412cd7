"""`labkit.owners`: which thread of which block writes each element, for kernels of this book, and how it is drawn."""

import re

import pytest
import torch

import labkit
from labkit import figures, results
from labkit.launching import prepare
from labkit.tracing import Recorder


def owners(*arguments, **more):
    return labkit.owners(*arguments, show=False, **more)


def numbered(thread, a_block):
    """Whose they are, of threads numbered through all blocks."""
    return thread // a_block, thread % a_block


@pytest.mark.parametrize("version, stride", [(1, 1), (2, 2), (3, 8), (4, 32)])
def test_a_strided_copy(version, stride):
    i = torch.arange(5000)
    group, within = i // (32 * stride), i % (32 * stride)
    block, thread = numbered(group * 32 * stride + within % stride * 32 + within // stride, 256)
    found = owners("copy", version, 5000, torch.float32)
    assert torch.equal(found.block, block) and torch.equal(found.thread, thread)
    assert torch.equal(found.warp, thread // 32) and torch.equal(found.lane, thread % 32)


@pytest.mark.parametrize("version, dtype, a_thread, threads", [
    (1, torch.float32, 1, 256), (3, torch.float32, 4, 32), (4, torch.bfloat16, 8, 128), (4, torch.float32, 4, 128)])
def test_gelu_with_consecutive_elements(version, dtype, a_thread, threads):
    block, thread = numbered(torch.arange(4096) // a_thread, threads)
    found = owners("gelu", version, 4096, dtype)
    assert torch.equal(found.block, block) and torch.equal(found.thread, thread)


def test_a_grid_stride_loop_comes_back_to_the_first_block():
    step = 132 * 8 * 256
    found = owners("gelu", 2, step + 300, torch.bfloat16)
    block, thread = numbered(torch.arange(step + 300) % step, 256)
    assert torch.equal(found.block, block) and torch.equal(found.thread, thread)


def test_a_transpose_has_a_matrix_of_owners():
    found = owners("transpose", 1, (70, 33), torch.float32)
    row, col = torch.meshgrid(torch.arange(33), torch.arange(70), indexing="ij")  # of y: x[col, row]
    assert found.block.shape == (33, 70)
    assert torch.equal(found.block, row // 32 + 2 * (col // 32)) and torch.equal(found.thread, row % 32 + 32 * (col % 32 % 8))


def test_memory_in_another_order_is_followed():
    x = torch.randn(6, 50).t()
    block, thread = labkit.trace("copy", 1, inputs=[x], show=False).writers["y"]
    memory = torch.arange(50)[:, None] + 50 * torch.arange(6)
    assert torch.equal(256 * block + thread, memory)


def test_what_nobody_writes_has_no_owner():
    lazy = labkit.mutant("copy", 1, "if (i < n)", "if (i < n && i % 3)")
    found = owners(lazy, 1, 1000, torch.float32)
    nobody = torch.arange(1000) % 3 == 0
    for numbers in (found.block, found.thread, found.warp, found.lane):
        assert (numbers[nobody] == -1).all() and (numbers[~nobody] >= 0).all()
    assert owners("copy", 1, 0, torch.float32).block.shape == (0,)


def test_the_last_to_write_owns_by_an_atomic_too():
    twice = labkit.mutant("copy", 1, "if (i < n) y[i] = x[i];", """if (i < n) {
        y[i] = x[i];
        if (i < 100) atomicAdd(reinterpret_cast<int*>(y + 99 - i), 0);
    }""")
    found = owners(twice, 1, 300, torch.float32)
    # Threads run in order: the atomic comes last where its thread's number is the higher one.
    assert found.thread[:50].tolist() == list(range(99, 49, -1)) and found.thread[50:100].tolist() == list(range(50, 100))


def test_blocks_count_on_through_the_launches_of_one_trace():
    launch = prepare("copy", "trace", 1, "forward", 600, torch.float32, None)
    for _ in range(2):  # and each trace begins at 0 again
        recorder = Recorder(launch.operator.library, launch.operator.source)
        x = recorder.array(launch.inputs[0], "x", "input")
        y = recorder.array(launch.new_outputs()[0], "y", "output")
        for begun in (0, 3):
            launch([x], [y])
            block, _ = recorder.writers("y", y)
            assert torch.equal(block, begun + torch.arange(600) // 256)


# ---- the drawing ----

def test_the_first_elements_are_drawn_and_kept(session, capsys):
    labkit.owners("gelu", 3, 1003, torch.float32)
    record = session().tables["gelu_v3_forward_owners"]
    assert record["starts"] == list(range(0, 128, 16)) and record["cells"][1][:5] == [[0, 4]] * 4 + [[0, 5]]
    assert record["request"] == [[y, x] for y in range(8) for x in (0, 4, 8, 12)]  # each thread's first of four elements
    assert record["whose"] == "warp 0 of block 0"
    assert results.Recorded({}, {}, record).caption() == results.EXACT
    assert session().notes[-1]["outcome"].startswith("1,003 elements traced")
    shown = capsys.readouterr().out
    assert "blocks of 32 threads: who writes each element" in shown
    assert "element 16: block 0, threads 4 4 4 4 5" in shown and "one request of warp 0 of block 0: 32 of these" in shown
    svg = figures.figure(record)
    assert svg.count("<title>block 0, thread 5: lane 5 of warp 0</title>") == 4
    assert svg.count('stroke-width="1.6"') == 32 and "Outlined: one request of warp 0 of block 0." in svg
    assert not re.search(r"#000(000)?\b|\bblack\b", svg) and "currentColor" in svg


def test_a_matrix_is_drawn_from_its_corner(session):
    labkit.owners("transpose", 1, (70, 33), torch.float32, name="mine")
    record = session().tables["mine"]
    assert record["rows"] == "row" and record["starts"] == list(range(8)) and [len(row) for row in record["cells"]] == [16] * 8
    assert record["cells"][2][3] == [0, 2 + 32 * 3] and "blocks of 32 × 8 threads" in record["title"]
    assert record["request"] == [[y, 0] for y in range(8)]  # a warp writes down a column


def test_many_blocks_and_elements_that_nobody_writes_are_told(session):
    labkit.owners("row_sum", 4, (40, 100), torch.float32, name="rows")
    svg = figures.figure(session().tables["rows"])
    assert "40 blocks: the colours repeat." in svg and svg.count(">block ") == 40 + 6
    lazy = labkit.mutant("copy", 1, "if (i < n)", "if (i < n && i % 3)")
    labkit.owners(lazy, 1, 20, torch.float32, name="lazy")
    record = session().tables["lazy"]
    assert record["cells"][1] == [[0, 16], [0, 17], None, [0, 19]]
    assert figures.figure(record).count("<title>not written</title>") == 7
    assert "not written" in figures.text_figure(record)
