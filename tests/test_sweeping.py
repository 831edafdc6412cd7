"""`labkit.geometry` and `labkit.achieved` on a simulated GPU: what lands in which cell, what is refused, shown and kept."""

import json
import types

import pytest
import torch
from simulated_gpu import GPU, SimulatedGpu

import labkit
from labkit import machine, results, sweeping, timing
from labkit.operator import python_part
from labkit.output_errors import WrongResult

REFERENCE = python_part("geometry", "reference")
THREADS = (32, 256)
N = 1000


def microseconds(version, threads):
    return 100 + 10 * version + threads


@pytest.fixture
def gpu(monkeypatch, session):
    """A simulated GPU whose times tell version and threads apart."""
    simulated = SimulatedGpu()
    simulated.free_bytes = lambda: 1e9
    monkeypatch.setattr(machine, "backend", lambda: "cuda")
    monkeypatch.setattr(machine, "gpu", lambda: GPU)
    monkeypatch.setattr(machine, "versions", lambda: {"torch": "2.11.0"})
    monkeypatch.setattr(machine, "clocks", lambda: None)
    monkeypatch.setattr(results.sources, "sources_hash", lambda name: "0" * 12)
    monkeypatch.setattr(timing, "Gpu", lambda: simulated)
    monkeypatch.setattr(sweeping, "empty_blocks", lambda blocks, threads: simulated.work(2 * blocks))
    monkeypatch.setattr(sweeping.torch, "clone", lambda x: simulated.work(90) or x.detach().contiguous())
    return simulated


@pytest.fixture
def operator(gpu):
    def sweep(x, version, threads):
        gpu.work(microseconds(version, threads))
        return torch.nn.functional.gelu(x, approximate="tanh")

    def native(x):
        gpu.work(125)
        return torch.nn.functional.gelu(x, approximate="tanh")

    ops = types.SimpleNamespace(sweep=sweep, occupancy=lambda x, version, threads: (version, 32, 0))
    return types.SimpleNamespace(name="geometry", backend="cuda", device=torch.device("cpu"), ops=ops, reference=REFERENCE,
                                 rivals=types.SimpleNamespace(forward=lambda: {"F.gelu": native}))


def test_each_geometry_has_its_cell(operator, session, capsys):
    heats = labkit.geometry("sweep", operator, N, "float32", threads=THREADS, rounds=3)
    rate = 2 * N * 4 / 1e3
    for order, versions in REFERENCE.VERSIONS.items():
        heat = heats[order]
        assert heat["x"] == {"label": "elements a thread", "values": [1, 2, 4, 8, 16]}
        assert heat["y"] == {"label": "threads a block", "values": [32, 256]} and heat["unit"] == "GB/s"
        want = [[rate / microseconds(version, threads) for version in versions.values()] for threads in THREADS]
        torch.testing.assert_close(torch.tensor(heat["cells"]), torch.tensor(want))
        assert {line["label"]: round(rate / line["value"]) for line in heat["lines"]} == {"copy": 90, "F.gelu": 125}
        assert [(mark["x"], mark["y"]) for mark in heat["marks"]] == [(4, 32)]
        assert session().tables[f"sweep_{order}"] == heat
    assert heats["consecutive"]["marks"][0]["label"] == "the article's choice" != heats["apart"]["marks"][0]["label"]
    assert "a block's width apart" in capsys.readouterr().out


def test_the_table_has_the_copy_the_rivals_the_article_and_the_fastest(operator, session):
    labkit.geometry("sweep", operator, N, "bfloat16", threads=THREADS, rounds=3)
    table = session().tables["sweep"]
    assert {row["name"]: round(row["median_us"]) for row in table["rows"]} == {
        "copy": 90, "F.gelu": 125, "the article's choice": microseconds(3, 32),
        "the fastest, 32 threads × 1": microseconds(1, 32)}
    assert (table["size"], table["dtype"], table["bytes"], table["limit"]) == ([N], "bfloat16", 4 * N, "copy")


def test_what_the_grids_alone_take_is_told_as_a_share(operator, session):
    labkit.geometry("sweep", operator, N, "bfloat16", threads=THREADS, rounds=3)
    starts = session().tables["sweep_starts"]
    assert starts["unit"] == "%" and starts["y"]["values"] == [32, 256] and starts["x"]["values"] == [1, 2, 4, 8, 16]
    want = [[100 * 2 * -(-N // (threads * elements)) / microseconds(version, threads)
             for elements, version in REFERENCE.VERSIONS["apart"].items()] for threads in THREADS]
    torch.testing.assert_close(torch.tensor(starts["cells"]), torch.tensor(want))


def test_one_element_a_thread_is_timed_once_for_both_orders(operator, gpu, session):
    labkit.geometry("sweep", operator, N, "float32", threads=(64,), rounds=2)
    assert session().notes[-1]["outcome"] == "9 geometries, 2 rounds"


def test_a_geometry_that_waits_for_python_has_no_rate(operator, gpu):
    quick = operator.ops.sweep

    def slow_host(x, version, threads):
        if (version, threads) == (7, 256):
            gpu.host += 1e5
        return quick(x, version, threads)

    operator.ops.sweep = slow_host
    heats = labkit.geometry("sweep", operator, N, "float32", threads=THREADS, rounds=3)
    assert [cell is None for row in heats["apart"]["cells"] for cell in row] == [k == 7 for k in range(10)]


def test_a_wrong_output_raises_and_nothing_is_kept(operator, session, capsys):
    right = operator.ops.sweep
    operator.ops.sweep = lambda x, version, threads: right(x, version, threads) + (0.1 if version == 8 else 0)
    with pytest.raises(WrongResult, match="v8, (32|256) threads, output 0: 1,000 of 1,000"):
        labkit.geometry("sweep", operator, N, "float32", threads=THREADS, rounds=2)
    assert not session().tables and not capsys.readouterr().out


def test_an_order_that_is_not_there_is_refused(operator):
    for call in (labkit.geometry, labkit.achieved):
        with pytest.raises(ValueError, match="geometry: orders holds 'random'; it has consecutive, apart"):
            call("sweep", operator, N, "float32", orders=("apart", "random"))


def test_without_a_gpu_the_recorded_maps_are_shown(operator, monkeypatch, capsys):
    labkit.geometry("sweep", operator, N, "float32", threads=THREADS, rounds=3)
    results.record()
    operator.backend = "host"
    monkeypatch.setattr(machine, "backend", lambda: "host")
    operator.ops.sweep = None  # nothing may run
    capsys.readouterr()
    assert labkit.geometry("sweep", operator, N, "float32") == {}
    shown = capsys.readouterr().out
    assert shown.count("Recorded on NVIDIA Test") == 4 and "not measured on this machine: there is no GPU here" in shown
    assert labkit.geometry("another", operator, N, "float32") == {}
    assert capsys.readouterr().out.count("nothing is recorded") == 1


# ---- occupancy ----

@pytest.fixture
def ncu(monkeypatch):
    """Stands for Nsight Compute: each launch's answer is its place in the program's list. Returns what was asked."""
    asked = {}

    def profile(metrics, program, launches):
        asked.update(metrics=metrics, program=program)
        return [{"achieved": float(place)} for place in range(launches)]

    monkeypatch.setattr(sweeping, "profile", profile)
    monkeypatch.setattr(sweeping, "limits", lambda: {"threads_a_warp": 32, "threads_an_sm": 2048})
    return asked


def test_what_was_achieved_and_what_is_possible(operator, ncu, session):
    found = labkit.achieved("slots", operator, N, "bfloat16", threads=(32, 100))
    assert ncu["metrics"] == {"achieved": "sm__warps_active.avg.pct_of_peak_sustained_active"}
    module, name, n, dtype, places = ncu["program"][1:]
    assert (module, name, n, dtype) == ("labkit.sweeping", "geometry", "1000", "bfloat16")
    places = [tuple(place) for place in json.loads(places)]
    assert sorted(places) == [(version, threads) for version in range(1, 10) for threads in (32, 100)]
    for order, versions in REFERENCE.VERSIONS.items():
        cells = [[places.index((version, threads)) for version in versions.values()] for threads in (32, 100)]
        assert found[order]["cells"] == cells and found[order]["unit"] == "%"
        # The fake SM holds as many blocks as the version's number; 100 threads are 4 warps of 64.
        assert session().tables[f"slots_{order}_limit"]["cells"] == [
            [100 * version * warps / 64 for version in versions.values()] for warps in (1, 4)]
        assert session().tables[f"slots_{order}"] == found[order]


def test_without_nsight_compute_it_says_so_and_keeps_nothing(operator, monkeypatch, session, capsys):
    monkeypatch.setattr(machine, "find_ncu", lambda: None)
    assert labkit.achieved("slots", operator, N, "bfloat16") == {}
    said = capsys.readouterr().out
    assert said.count("Nsight Compute did not count: ncu is not installed") == 1 and not session().tables


def test_the_program_launches_each_geometry_once_while_it_is_profiled(monkeypatch):
    monkeypatch.setenv("LABKIT_BACKEND", "host")
    host, log = labkit.load("geometry"), []
    ops = types.SimpleNamespace(sweep_out=lambda x, y, *place: log.append((tuple(x.shape), x.dtype, *place)))
    fake = types.SimpleNamespace(device=host.device, ops=ops)
    monkeypatch.setattr("labkit.build.load", lambda name: fake if name == "geometry" else None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: log.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: log.append("stop"))
    sweeping._launch_each_geometry("geometry", 70, "float16", [[3, 32], [7, 96]])
    assert log == ["start", ((70,), torch.float16, 3, 32), ((70,), torch.float16, 7, 96), "stop"]


@pytest.mark.gpu
def test_on_a_gpu_every_geometry_is_timed_and_right(session):
    operator = labkit.load("geometry")
    heats = labkit.geometry("sweep", operator, 1 << 24, "bfloat16", rounds=5)
    assert all(cell > 0 for heat in heats.values() for row in heat["cells"] for cell in row)


@pytest.mark.gpu
def test_on_a_gpu_no_more_is_achieved_than_is_possible(session):
    if machine.find_ncu() is None:
        pytest.skip("Nsight Compute is not installed")
    found = labkit.achieved("slots", labkit.load("geometry"), 1 << 24, "bfloat16", threads=(32, 256))
    if not found:
        pytest.skip("Nsight Compute may not count here")
    for order, heat in found.items():
        possible = session().tables[f"slots_{order}_limit"]["cells"]
        assert all(0 < a <= b + 1 for row, most in zip(heat["cells"], possible) for a, b in zip(row, most))
