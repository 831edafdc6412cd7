"""The trace mode's counts, against a slow model of their own and by hand; and `labkit.trace` as labs call it."""

import math
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict

import pytest
import torch
from host_build import KERNELS, LAUNCH_FAILURE, trace

import labkit
from labkit import figures

# ---- counts ----

def accesses(name, arrays, *numbers):
    found, code, left = trace("traced_counts", f"run_{name}", arrays, *numbers)
    assert code == 0 and found.findings == []
    return found, left


def buffers(elements, dtype=torch.float32):
    return {"x": (torch.arange(elements).to(dtype), "input"), "y": (torch.zeros(elements, dtype=dtype), "both")}


@pytest.mark.parametrize("name, dtype", [("strided2", torch.int16), ("strided4", torch.float32), ("strided8", torch.float64)])
@pytest.mark.parametrize("stride", [1, 2, 3, 8, 32])
@pytest.mark.parametrize("first", [0, 1, 7])
def test_sectors_of_strided_and_shifted_accesses(name, dtype, stride, first):
    blocks, item = 3, dtype.itemsize
    found, _ = accesses(name, buffers(64 * blocks * stride + first, dtype), blocks, stride, first)
    sectors = ideal = 0
    for warp in range(2 * blocks):
        starts = [(first + (32 * warp + lane) * stride) * item for lane in range(32)]
        sectors += len({byte // 32 for start in starts for byte in (start, start + item - 1)})
        ideal += -(-32 * item // 32)
    for does in ("reads", "writes"):
        total = found.total(does)
        assert (total.requests, total.lanes, total.bytes) == (2 * blocks, 64 * blocks, 64 * blocks * item)
        assert (total.sectors, total.ideal_sectors) == (sectors, ideal)


def test_a_tensor_that_is_a_view_keeps_its_alignment():
    x = torch.zeros(65)[1:]
    found, _ = accesses("strided4", {"x": (x, "input"), "y": (torch.zeros(64), "both")}, 1, 1, 0)
    assert (found.total("reads").sectors, found.total("writes").sectors) == (10, 8)


@pytest.mark.parametrize("n, radius", [(300, 3), (128, 1), (65, 16)])
def test_lanes_that_leave_out_turns_of_a_loop_still_go_together(n, radius):
    found, left = accesses("stencil", buffers(n), n, radius)
    lanes = defaultdict(list)  # (warp, turn) -> elements read
    for i in range(n):
        for k in range(-radius, radius + 1):
            if 0 <= i + k < n:
                lanes[i // 32, k].append(i + k)
    reads = found.total("reads")
    assert reads.requests == len(lanes)
    assert reads.sectors == sum(len({j // 8 for j in touched}) for touched in lanes.values())
    x = torch.arange(n, dtype=torch.float64)
    want = torch.tensor([x[max(i - radius, 0):i + radius + 1].sum() for i in range(n)])
    torch.testing.assert_close(left["y"].double(), want)


@pytest.mark.parametrize("seed", range(3))
def test_loops_of_different_lengths_with_accesses_in_some_turns(seed):
    generator = torch.Generator().manual_seed(seed)
    turns = torch.randint(0, 20, (128,), generator=generator, dtype=torch.int32)
    loads = torch.randint(0, 2**20, (128,), generator=generator, dtype=torch.int32)
    found, _ = accesses("data_dependent", {"turns": (turns, "input"), "loads": (loads, "input"), **buffers(200)}, 2)
    made = [(i // 32, k, i + k) for i in range(128) for k in range(int(turns[i])) if int(loads[i]) >> k & 1]
    requests = {(warp, k) for warp, k, _ in made}
    sectors = {(warp, k, j // 8) for warp, k, j in made}
    reads = found.total("reads")  # and one request a warp for each of turns[i] and loads[i], which need 4 sectors
    looping = {i // 32 for i in range(128) if turns[i]}
    assert reads.requests == len(requests) + 4 + len(looping)
    assert reads.lanes == len(made) + 128 + int((turns > 0).sum())
    partly = sum(len({i // 8 for i in range(32 * w, 32 * w + 32) if turns[i]}) for w in looping)
    assert reads.sectors == len(sectors) + 16 + partly


def test_lanes_whose_last_access_differs_go_together_until_then():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(1, 256, (32,), generator=generator, dtype=torch.int32) for _ in "ab")
    found, _ = accesses("two_conditions", {"a": (a, "input"), "b": (b, "input"), **buffers(200)})
    wanted = sum(any(int(bits[i]) >> k & 1 for i in range(32)) for bits in (a, b) for k in range(8))
    assert found.total("reads").requests == 2 + wanted


@pytest.mark.parametrize("kernel, stores", [(5, lambda i, f: not (i & 1 and f < 0)), (6, lambda i, f: i % 3 == 0 or f > 0)])
def test_lanes_that_end_inside_a_branch_are_not_waited_for(kernel, stores):  # returns_inside, either_condition
    n = 256
    f = torch.randint(-100, 100, (n,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    arrays = {"x": (torch.ones(n + 64), "input"), "f": (f, "input"), "y": (torch.zeros(5 * n), "both")}
    found, code, _ = trace("branches", "run", arrays, n, kernel)
    lanes = [i for i in range(n) if stores(i, int(f[i]))]
    writes = found.total("writes")
    assert code == 0 and found.findings == []
    assert (writes.requests, writes.lanes) == (n // 32, len(lanes))
    assert writes.sectors == len({i // 8 for i in lanes})


def test_a_function_called_from_two_sides_of_a_branch_is_two_requests():
    found, _ = accesses("two_calls", buffers(32))
    assert (found.total("reads").requests, found.total("reads").sectors) == (2, 8)
    assert found.total("writes").requests == 1


def test_a_vector_is_one_access_and_a_structure_several():
    vectors, left = accesses("vectors", buffers(128))
    assert {(t.requests, t.sectors, t.size) for t in (vectors.total("reads"), vectors.total("writes"))} == {(1, 16, 0)}
    assert {a.size for a in vectors.accesses} == {16}
    assert left["y"][:4].tolist() == [3, 2, 1, 0]
    structures, _ = accesses("structures", buffers(96))
    assert (structures.total("reads").requests, structures.total("reads").sectors) == (3, 36)


@pytest.mark.parametrize("name, dtype, items, expected", [
    # (items, wavefronts, ideal) of the strides 1, 2, 3, 4, 8, 16, 32, 33
    ("shared2", torch.int16, 1, [(1, 1), (1, 1), (2, 1), (2, 1), (4, 1), (8, 1), (16, 1), (1, 1)]),
    ("shared4", torch.float32, 1, [(1, 1), (2, 1), (1, 1), (4, 1), (8, 1), (16, 1), (32, 1), (1, 1)]),
    ("shared8", torch.float64, 1, [(2, 2), (4, 2), (2, 2), (8, 2), (16, 2), (32, 2), (32, 2), (2, 2)]),
    ("shared16", torch.float32, 4, [(4, 4), (8, 4), (4, 4), (16, 4), (32, 4), (32, 4), (32, 4), (4, 4)]),
])
def test_bank_conflicts_of_strides(name, dtype, items, expected):
    for stride, (wavefronts, ideal) in zip((1, 2, 3, 4, 8, 16, 32, 33), expected):
        found, _ = accesses(name, buffers(32 * 33 * items, dtype), stride)
        reads = found.total("reads", shared=True)
        assert (reads.requests, reads.wavefronts, reads.ideal_wavefronts) == (1, wavefronts, ideal), stride
        assert reads.conflicts == wavefronts - ideal
        writes = found.total("writes", shared=True)
        assert writes.requests == 33 and writes.conflicts == 0


def test_atomics_are_counted_apart():
    bins = torch.randint(0, 8, (64,), dtype=torch.int32)
    found, left = accesses("histogram", {"bins": (bins, "input"), "y": (torch.zeros(8, dtype=torch.int32), "both")})
    shared, world = found.total("updates", shared=True), found.total("updates")
    assert (shared.requests, shared.lanes, world.requests, world.lanes) == (2, 64, 1, 8)
    assert torch.equal(left["y"], torch.bincount(bins, minlength=8).int())
    rows = {row["access"]: row for row in found.shared_table()["rows"]}
    assert rows["updates"]["requests"] == 2 and rows["updates"]["bank conflicts"] is None and rows["reads"]["wavefronts"] == 1
    assert "–" in figures.text_table(found.shared_table())


def test_one_launch_may_read_what_an_earlier_one_wrote():
    found, _ = accesses("twice", buffers(128))
    assert len(found.launches) == 2 and found.launches[0] == {"kernel": "strided", "grid": [1, 1, 1], "block": [64, 1, 1]}


def test_a_trace_in_another_process_is_the_same(tmp_path):
    program = ("import sys; sys.path.insert(0, sys.argv[1]); import torch, labkit\n"
               "found = labkit.trace('transpose', 2, size=(100, 77), dtype=torch.float32, show=False)\n"
               "print(found.accesses, found.findings)")
    said = {subprocess.run([sys.executable, "-c", program, str(labkit.REPOSITORY)], cwd=tmp_path, capture_output=True,
                           text=True, check=True).stdout.partition("[Access")[2] for _ in range(2)}
    assert len(said) == 1 and said != {""}


def test_a_trace_that_was_left_unfinished_does_not_swallow_a_later_crash():
    program = ("import sys, ctypes; sys.path[:0] = sys.argv[1:]; from host_build import KERNELS, traced; "
               "from labkit.tracing import Recorder\n"
               "library, source = traced('traced_counts'), KERNELS / 'traced_counts.cu'\n"
               "Recorder(library, source); Recorder(library, source).finish('a', 'b'); ctypes.string_at(8)")
    paths = [str(labkit.REPOSITORY / "tests"), str(labkit.REPOSITORY)]
    done = subprocess.run([sys.executable, "-c", program, *paths], capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGSEGV


def test_a_loop_without_end_is_stopped_and_named():
    x = {"x": (torch.ones(64), "input"), "y": (torch.zeros(64), "both")}
    found, code, _ = trace("traced_counts", "run_endless", x, events=100_000)
    assert code == LAUNCH_FAILURE
    finding, = found.findings
    assert "more accesses between two barriers than the trace can hold. Trace a smaller size" in finding.text
    source = (KERNELS / "traced_counts.cu").read_text().splitlines()
    assert "while" in source[int(finding.line.rpartition(":")[2]) - 1]
    again, code, _ = trace("traced_counts", "run_strided4", buffers(64), 1, 1, 0)
    assert code == 0 and again.total("reads").requests == 2


# ---- labkit.trace ----

# (requests, sectors) of a warp's load, for 16-bit elements
@pytest.mark.parametrize("version, requests, sectors", [(1, 128, 256), (2, 128, 256), (3, 128, 1024), (4, 16, 256),
                                                        (5, 16, 256), (6, 16, 256), (7, 16, 256)])
def test_every_version_of_gelu_moves_what_its_chapter_says(session, version, requests, sectors):
    found = labkit.trace("gelu", version=version, size=4096, dtype=torch.bfloat16)
    assert found.findings == []
    for does in ("reads", "writes"):
        assert (found.total(does).requests, found.total(does).sectors) == (requests, sectors)
    x = torch.Generator().manual_seed(0)
    given = (torch.randn(4096, generator=x, dtype=torch.float64) * 2.5).clamp(-8, 8).to(torch.bfloat16)
    z = 0.7978845608028654 * (given.double() + 0.044715 * given.double() ** 3)
    torch.testing.assert_close(found.outputs[0].double(), given.double() * torch.sigmoid(2 * z), rtol=2**-7, atol=2e-3)
    assert f"gelu_v{version}_forward_trace" in session().tables


def test_the_table_tells_line_source_and_share(session, capsys):
    found = labkit.trace("gelu", version=3, mode="backward", size=4096, dtype=torch.bfloat16)
    row = found.table()["rows"][0]
    assert row["access"] == "reads" and re.match(r"\d+: for .*a\.in\[k\]\[i\]", row["line"])
    assert (row["requests"], row["per request"], row["ideal"], row["useful, %"]) == (256, 8, 2, 25.0)
    shown = capsys.readouterr().out
    assert "gelu v3 backward, 4096 bfloat16: sectors of global memory" in shown and "No fault found." in shown
    assert found.shared_table() is None


def test_lines_that_do_the_same_are_named_and_summed(session):
    found = labkit.trace("row_sum", version=3, size=(2, 1000), dtype=torch.float32)
    rows = {row["access"]: row for row in found.shared_table()["rows"]}
    lines = [label for label in rows if re.fullmatch(r"reads, \d+", label)]
    assert len(lines) == 2 and rows["reads in all"]["requests"] == sum(rows[line]["requests"] for line in lines)
    # 256 partial sums: 8 warps write them; halves of 4, 2, 1 and five times 1 warp read two and write one.
    assert rows["reads in all"]["requests"] == 2 * (2 * (4 + 2 + 1 + 5 * 1) + 1)
    assert rows["writes in all"]["requests"] == 2 * (8 + 4 + 2 + 1 + 5 * 1)
    assert rows["reads in all"]["bank conflicts"] == rows["writes in all"]["bank conflicts"] == 0
    assert {"row_sum_v3_forward_trace", "row_sum_v3_forward_trace_shared"} <= set(session().tables)


@pytest.mark.parametrize("version, conflicts", [(1, 0), (2, 31), (3, 0)])
def test_the_transposes_show_what_each_is_there_for(session, version, conflicts):
    x = torch.randn(64, 96)
    found = labkit.trace("transpose", version=version, inputs=[x])
    warps = 64 * 96 // 32
    assert found.total("writes").sectors == warps * (32 if version == 1 else 4) and found.total("reads").sectors == 4 * warps
    assert found.total("reads", shared=True).conflicts == conflicts * warps
    assert torch.equal(found.outputs[0], x.t())


@pytest.mark.parametrize("version, reads_of_shared", [(2, 25), (3, 5 * 12 / 8)])
def test_a_tile_saves_the_stencil_four_fifths_of_its_global_reads(session, version, reads_of_shared):
    straight, tiled = (labkit.trace("stencil", v, size=(256, 256), dtype=torch.float32) for v in (1, version))
    warps = 256 * 256 // 32
    beyond = 2 * (2 + 1) * 5 * 8  # requests of v1 above and below the matrix: 2 rows for the first of y, 1 for the second
    assert straight.total("reads").requests == 25 * warps - beyond and straight.shared_table() is None
    for count in ("requests", "sectors"):
        assert getattr(tiled.total("reads"), count) <= 0.2 * getattr(straight.total("reads"), count)
    assert tiled.total("reads", shared=True).requests == reads_of_shared * warps
    for found in (straight, tiled):
        assert found.findings == [] and found.total("writes").sectors == 4 * warps
        assert found.total("reads", shared=True).conflicts == found.total("writes", shared=True).conflicts == 0
    torch.testing.assert_close(tiled.outputs[0], straight.outputs[0], rtol=0.0, atol=1e-5)


def test_the_picture_shows_lanes_and_sectors(session, capsys):
    found = labkit.trace("gelu", version=1, size=4096, dtype=torch.float32)
    capsys.readouterr()
    found.picture(does="reads")
    shown = capsys.readouterr().out
    assert "reads 32 × 4 bytes of x at gelu.cu" in shown and "4 sectors of 32 bytes, 4 would hold them" in shown
    assert "bytes 32 to 63: lanes 8–15" in shown
    with pytest.raises(ValueError, match="no such access; this trace has reads gelu.cu"):
        found.picture(line=1)


@pytest.mark.parametrize("operator, arguments, error, words", [
    ("gelu", {"mode": "sideways"}, ValueError, "mode is 'sideways'; it has forward"),
    ("gelu", {"version": 99}, ValueError, "version is 99; it has 1, 2"),
    ("gelu", {"version": True}, ValueError, "version is True"),
    ("gelu", {"mode": "backward", "inputs": [torch.zeros(4)]}, ValueError, "1 inputs; backward takes 2: grad, x"),
    ("gelu", {"inputs": [torch.zeros(4)], "size": 4}, ValueError, "either inputs, or size and dtype"),
    ("gelu", {"inputs": torch.zeros(4)}, TypeError, "inputs is a Tensor; it has to be a list of tensors: x"),
    ("gelu", {"mode": "backward", "inputs": [torch.zeros(3), torch.zeros(4)]}, ValueError,
     r"backward does not take inputs of the shapes \(3,\), \(4,\)"),
    ("gelu", {"inputs": [torch.zeros(8)[::2]]}, ValueError, r"`x` has gaps.*Pass x.contiguous\(\)"),
    ("gelu", {"inputs": [torch.zeros(4, dtype=torch.int64)]}, RuntimeError, "gelu takes float16"),
    ("copy", {"size": 1e6}, ValueError, r"size is 1000000.0; it has to be a number of elements, or a shape"),
    ("copy", {"size": (4, -1)}, ValueError, r"size is \(4, -1\)"),
    ("copy", {"size": 1 << 40}, ValueError, "at most 268,435,456 are drawn"),
    ("copy", {"dtype": "float32"}, ValueError, "dtype is 'float32'; it has to be a torch.dtype, one of torch.float16"),
    ("row_sum", {"size": 100}, ValueError, r"forward does not take inputs of the shapes \(100,\)"),
    (None, {}, TypeError, "operator is None; it has to be what labkit.load returns, or the name"),
])
def test_arguments_that_make_no_sense_are_refused(session, operator, arguments, error, words):
    with pytest.raises(error, match=words):
        labkit.trace(operator, **arguments)


@pytest.mark.parametrize("name, version, size", [("gelu", 1, 1 << 20), ("gelu", 7, 1 << 23), ("transpose", 3, (2048, 2048))])
def test_a_million_threads_are_traced_in_ten_seconds(session, name, version, size):
    labkit.load(name, backend="trace", launch=False)  # builds it
    start = time.process_time()  # of this process, whatever else the machine does
    found = labkit.trace(name, version, size=size, dtype=torch.bfloat16)
    seconds = time.process_time() - start
    (launch,) = found.launches
    assert math.prod(launch["grid"]) * math.prod(launch["block"]) == 1 << 20
    assert seconds < 10, f"{seconds:.1f} s"


def test_without_gcc_it_says_what_to_install(session, monkeypatch, tmp_path):
    monkeypatch.setattr("labkit.host.is_gcc", lambda compiler: False)
    monkeypatch.setenv("LABKIT_BUILD", str(tmp_path))
    monkeypatch.setattr("labkit.build._loaded", {})
    with pytest.raises(labkit.build.BuildError, match="tracing needs g\\+\\+"):
        labkit.trace("gelu")
