"""`labkit.levels` and `labkit.in_flight`: the chain that is followed, Little's law, and on a GPU that the probes are true."""

import re
import subprocess

import pytest
import torch

import labkit
from labkit import REPOSITORY, machine, memory
from labkit.sources import PROBES

GIB = 1 << 30


@pytest.mark.parametrize("lines", [1, 2, 7, 1000])
def test_a_chain_is_one_cycle_through_every_line(lines):
    address = 4096
    words = memory.chain(lines, address, seed=3)
    assert words.dtype == torch.int64 and len(words) == lines * 16
    at, visited = words.nonzero()[0].item(), []
    for _ in range(lines):
        visited.append(at)
        at = (words[at].item() - address) // 8
    assert at == visited[0] and sorted(visited) == list(range(0, lines * 16, 16))


def test_a_chain_does_not_go_line_by_line():
    words = memory.chain(1 << 12, 0)
    steps = (words[::16] - 128 * torch.arange(1 << 12)) // 128
    assert (steps == 1).float().mean() < 0.01  # or the hardware might foresee the next line


def test_littles_law_and_where_the_bandwidth_is_reached():
    points = {1: {1024: 100.0, 2048: 200.0, 4096: 400.0}, 2: {2048: 180.0, 4096: 370.0, 8192: 420.0}}
    curve, rows = memory.little(points, latency_ns=500.0, sms=50)
    assert curve["x"]["values"] == [1024, 2048, 4096, 8192]
    assert curve["series"]["1 load a thread"] == [100, 200, 400, None]
    assert curve["series"]["2 loads a thread"] == [None, 180, 370, 420]
    assert curve["series"]["Little's law"] == pytest.approx([102.4, 204.8, 409.6, 420])
    nine_tenths = 2048 * 2 ** ((378 - 200) / (400 - 200))
    assert [row["value"] for row in rows] == [500, 420, pytest.approx(420 * 500 / 50 / 1024, abs=0.05),
                                              pytest.approx(nine_tenths / 1024, abs=0.05)]


def test_a_level_that_the_first_size_reaches():
    assert memory.reached([512, 1024], [90.0, 100.0], 90.0) == 512


def test_what_the_first_cache_holds_is_read_off_the_curve():
    curve = {"x": {"values": [1, 2, 3, 4, 5]}, "series": {"one": [32, 32.5, 33, 150, 280]}}
    assert memory._first_level(curve) == 3


def test_sizes_are_written_in_binary_units():
    assert [memory._size(n) for n in (512, 4 << 10, 60 << 20, 150_109_880_320)] == ["512 bytes", "4 KiB", "60 MiB", "139.8 GiB"]


@pytest.mark.parametrize("function", [labkit.levels, labkit.in_flight])
def test_without_a_gpu_nothing_is_measured(function, session, monkeypatch, capsys):
    monkeypatch.setattr(memory.machine, "backend", lambda: "host")
    assert function("levels") == [] and not session().tables
    assert "there is no GPU here, and nothing is recorded" in capsys.readouterr().out


@pytest.mark.gpu
def test_a_chase_ends_where_the_chain_leads():
    lines, steps = 500, memory.STEPS + 3
    words = torch.empty(lines * 16, dtype=torch.int64, device="cuda")
    words.copy_(memory.chain(lines, words.data_ptr()))
    at = 0
    for _ in range(steps):
        at = (words[at].item() - words.data_ptr()) // 8
    clocks, end = memory._walk("chase_global", words, 3)
    assert end == at and clocks > 10
    assert memory._walk("chase_shared")[1] == memory.STEPS % 1024
    assert memory._walk("chase_register", 1)[1] == memory.STEPS


@pytest.mark.gpu
def test_sums_that_are_wrong_are_not_timed():
    with pytest.raises(RuntimeError, match="L1: the probe did not read what it should"):
        memory._verify("L1", torch.tensor([1, 2], dtype=torch.int32), 4)


PROBE = {"registers": memory._registers_gbps, "shared memory": memory._shared_gbps, "L1": memory._l1_gbps,
         "memory": lambda gpu: memory._read_gbps(memory._words(memory._beyond_caches(gpu)), gpu, 2048, 4)}


@pytest.mark.gpu
@pytest.mark.parametrize("probe", PROBE)
def test_a_launch_lasts_so_long_that_starting_it_does_not_count(probe, monkeypatch):
    gpu = torch.cuda.get_device_properties(0)
    once = PROBE[probe](gpu)
    monkeypatch.setattr(memory, "LAUNCH_SECONDS", 4 * memory.LAUNCH_SECONDS)
    assert PROBE[probe](gpu) == pytest.approx(once, rel=0.02)


@pytest.mark.gpu
def test_levels_come_in_the_order_of_their_distance(session):
    rows = {row["level"]: row for row in labkit.levels("levels")}
    near_to_far = ["registers", "shared memory", "L1 cache", "L2 cache", "memory"]
    clocks = [rows[level]["latency, clocks"] for level in near_to_far]
    assert list(rows) == near_to_far and clocks == sorted(clocks) and clocks[-1] > 1.5 * clocks[-2]
    gbps = [rows[level]["GB/s"] for level in near_to_far]
    assert gbps[0] > gbps[1] > gbps[3] > gbps[4] and gbps[2] > gbps[3]
    copy = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for event in (start, stop):
        copied = copy.clone()
        event.record()
    torch.cuda.synchronize()
    rate = 2 * GIB / start.elapsed_time(stop) / 1e6
    assert copied is not None and 0.9 * rate < gbps[-1] < 1.25 * rate
    assert set(session().tables) == {"levels", "levels_latency"}


@pytest.mark.gpu
def test_more_bytes_in_flight_bring_more_until_the_memory_is_busy(session):
    labkit.in_flight("in_flight")
    curve = session().tables["in_flight"]
    one = [gbps for gbps in curve["series"]["1 load a thread"] if gbps]
    assert one[1] == pytest.approx(2 * one[0], rel=0.15) and max(one) > 5 * one[0]
    law = curve["series"]["Little's law"]
    assert all(a is None or a < 1.1 * b for a, b in zip(curve["series"]["1 load a thread"], law))
    most = curve["series"]["4 loads a thread"][-1]
    row = next(row for row in labkit.levels("levels") if row["level"] == "memory")
    assert most == pytest.approx(row["GB/s"], rel=0.03)  # the same grid, in another table


@pytest.mark.skipif(machine.find_nvcc() is None, reason="nvcc is not installed")
def test_the_probes_compile_without_a_header_and_load_four_times_sixteen_bytes(tmp_path):
    done = subprocess.run([machine.find_nvcc(), "-arch=sm_75", "-ptx", "-o", tmp_path / "probes.ptx", REPOSITORY / PROBES],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kernels = dict(re.findall(r"\.entry (\w+)\((.*?)^}", (tmp_path / "probes.ptx").read_text(), re.MULTILINE | re.DOTALL))
    for loads in (1, 2, 4):
        assert kernels[f"read_{loads}"].count("ld.global.cg.v4") == loads
