"""The trace mode's findings: each fault at its line, and nothing in its mended twin; and what a fault leaves behind."""

import re

import pytest
import torch
from host_build import KERNELS, LAUNCH_FAILURE, trace

FAULTS = (KERNELS / "traced_faults.cu").read_text(encoding="utf-8").splitlines()


def marked(name):
    """The line of traced_faults.cu that ends in `// @name`."""
    (number,) = [i for i, text in enumerate(FAULTS, 1) if text.endswith(f"// @{name}")]
    return f"traced_faults.cu:{number}"


# ---- faults ----

ABSENT, EARLY, GAP = "shuffle from an absent lane", "read of what nothing has written yet", "output left unwritten"
# name: (kind of finding, elements of y, n, kinds that come with it: a thread that reads too early reads what nothing has
# written, a store too far on leaves a gap, and threads of one warp race where threads of two do)
KINDS = {
    "barrier_before_read": ("race", 256, 0, {EARLY}), "barrier_before_reuse": ("race", 256, 512, set()),
    "divergent_barrier": ("barrier not reached by all", 64, 0, set()),
    "early_return": ("barrier not reached by all", 100, 100, set()),
    "past_the_end": ("access out of bounds", 1000, 1000, set()), "tail_left_out": (GAP, 1001, 1001, set()),
    "warp_sum": ("race in a warp", 1, 0, {EARLY}), "blocks_add": ("race between blocks", 1, 0, {EARLY}),
    "writes_twice": ("race in a warp", 1, 0, set()), "misaligned": ("misaligned access", 4, 0, {GAP}),
    "beyond_shared": ("access out of bounds", 32, 0, set()), "beyond_dynamic": ("access out of bounds", 32, 0, set()),
    "reads_unwritten": (EARLY, 32, 0, set()), "reads_output": (EARLY, 32, 0, set()),
    "writes_input": ("write to an input", 32, 0, set()), "far_away": ("access out of bounds", 32, 0, {GAP}),
    "null_pointer": ("access out of bounds", 32, 0, {GAP}),
    "shuffle_is_no_barrier": ("race in a warp", 32, 0, set()), "half_a_warp_waits": ("race in a warp", 32, 0, {EARLY}),
    "shuffle_after_return": (ABSENT, 24, 0, set()), "shuffle_beyond_mask": (ABSENT, 32, 0, set()),
    "shuffle_of_no_thread": (ABSENT, 20, 0, set()),
    "count_is_read_early": ("race", 1, 0, {"race in a warp"}), "last_block": ("race between blocks", 8, 0, set()),
    "ticket_without_barrier": ("race between blocks", 64, 0, set()),
    "ticket_before_store": ("race between blocks", 8, 0, set()),
    "ticket_of_tickets": ("race between blocks", 8, 0, set()), "other_atomic": ("race between blocks", 1, 0, set()),
    "store_then_atomic": ("race", 1, 0, {"race in a warp"}),
    "store_of_one_block_and_atomics": ("race between blocks", 1, 0, {"race in a warp"}),
    "read_by_all_blocks": ("race between blocks", 128, 0, set()),
    "two_barriers": ("launch failed", 64, 0, {GAP}),
}
WRITTEN_AND_READ = {"blocks_add": "y", "other_atomic": "y", "store_of_one_block_and_atomics": "y", "last_block": "x",
                    "ticket_without_barrier": "x", "ticket_before_store": "x", "ticket_of_tickets": "x",
                    "read_by_all_blocks": "x"}
ENDS_THE_LAUNCH = {"misaligned", "far_away", "null_pointer", "two_barriers"}


def run_fault(name, fixed):
    _, elements, n, _ = KINDS[name]
    x = torch.arange(1024.0)
    x[8] = 0  # last_block counts here, the tickets from 512 on
    x[512:] = 0
    both = WRITTEN_AND_READ.get(name)
    other_atomic = name == "other_atomic"
    arrays = {"x": (x, "both" if both == "x" or other_atomic else "input"),
              "y": (torch.zeros(elements), "both" if both == "y" else "output")}
    return trace("traced_faults", f"run_{name}", arrays, n, fixed)


def test_every_faulty_kernel_is_tried():
    assert re.findall(r"^RUN\((\w+)", "\n".join(FAULTS), re.MULTILINE) == list(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_is_found_at_its_line(name):
    found, code, _ = run_fault(name, False)
    kind, line, companions = KINDS[name][0], marked(name), KINDS[name][3]
    right = [f for f in found.findings if f.kind == kind and line in (f.line, f.other_line)]
    assert right and right[0].count > 0, found.findings
    assert {f.kind for f in found.findings} <= {kind, *companions}
    assert code == (LAUNCH_FAILURE if name in ENDS_THE_LAUNCH else 0)


@pytest.mark.parametrize("name", KINDS)
def test_its_mended_twin_is_clean(name):
    found, code, _ = run_fault(name, True)
    assert found.findings == [] and code == 0


@pytest.mark.parametrize("name, words", [
    ("barrier_before_read", [r"race: thread \(127,0,0\) of block \(0,0,0\) reads 4 bytes at byte 512 of shared array `tile`",
                             r"thread \(128,0,0\) of block \(0,0,0\) writes it at traced_faults.cu:\d+; no __syncthreads"]),
    ("past_the_end", [r"thread \(232,0,0\) of block \(3,0,0\) writes y\[1000\], of 1000 elements"]),
    ("tail_left_out", [r"y\[1000\], of 1001 elements"]),
    ("early_return", [r"__syncthreads is reached by 100 of the block's 256 threads: thread \(100,0,0\)"]),
    ("misaligned", [r"reads 16 bytes at x\[1\]"]),
    ("writes_twice", [r"thread \(1,0,0\).*writes y\[0\].*thread \(0,0,0\).*writes it at the same line"]),
    ("beyond_shared", [r"thread \(31,0,0\).*writes 4 bytes at byte 128 of shared array `tile`, which has 128"]),
    ("count_is_read_early", [r"thread \(0,0,0\).*reads .*`count`.*updates it"]),
    ("shuffle_after_return", [r"thread \(16,0,0\).*reads lane 24 of its warp in __shfl_down_sync, and that lane has ended"]),
    ("shuffle_beyond_mask", [r"thread \(0,0,0\).*reads lane 16 .*__shfl_xor_sync, and that lane is not in the mask"]),
    ("shuffle_of_no_thread", [r"reads lane 20 of its warp in __shfl_sync, and that lane does not exist"]),
    ("null_pointer", [r"follows a null pointer"]),
    ("two_barriers", [r"wait at different barriers"]),
])
def test_findings_name_threads_and_addresses(name, words):
    found, _, _ = run_fault(name, False)
    texts = "\n".join(f.text for f in found.findings)
    for pattern in words:
        assert re.search(pattern, texts), texts


def test_counts_of_findings_are_accesses_and_not_bytes():
    found, _, _ = run_fault("barrier_before_read", False)
    race, = [f for f in found.findings if f.kind == "race"]
    assert race.count == 256  # one for each pair of a write and a read


# ---- what a fault leaves behind ----

@pytest.mark.parametrize("between", [None, "misaligned", "far_away", "null_pointer", "two_barriers"])
def test_the_same_twice_gives_the_same_also_after_a_launch_that_failed(between):
    def one():
        found, code, _ = trace("traced_faults", "run_barrier_before_reuse",
                               {"x": (torch.arange(1024.0), "input"), "y": (torch.zeros(256), "output")}, 512, 1)
        assert code == 0 and found.findings == []
        return found.accesses

    first = one()
    if between:
        assert run_fault(between, False)[1] == LAUNCH_FAILURE
    assert one() == first


def test_a_trace_does_not_depend_on_the_order_of_schedules(monkeypatch):
    texts = set()
    for order in ("forward", "reverse", "7"):
        monkeypatch.setenv("LABKIT_HOST_ORDER", order)
        texts.add("\n".join(map(str, run_fault("read_by_all_blocks", False)[0].findings)))
    assert len(texts) == 1
