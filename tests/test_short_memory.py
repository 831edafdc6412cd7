"""`bench` where a GPU's memory is short, shared with others, or held by what was interrupted. On a simulated GPU."""

import types
import weakref

import pytest
import torch
from simulated_gpu import GPU, SimulatedGpu

from labkit import machine, results, room, timing
from labkit.output_errors import WrongResult

ROWS = 4096


class SmallGpu(SimulatedGpu):
    """A simulated GPU on which a call with more than `most` rows runs out of memory."""

    def __init__(self, most):
        super().__init__()
        self.most, self.called = most, []

    def free_bytes(self):
        return 1e9

    def half(self, x):
        self.called.append(x)
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.work(100 * len(x) / ROWS)
        return x / 2


@pytest.fixture
def small(monkeypatch, session):
    """small(most): puts such a GPU in place."""
    def put(most):
        gpu = SmallGpu(most)
        monkeypatch.setattr(timing, "Gpu", lambda: gpu)
        return gpu

    monkeypatch.setattr(machine, "backend", lambda: "cuda")
    monkeypatch.setattr(machine, "gpu", lambda: GPU)
    monkeypatch.setattr(timing, "here", lambda: "a simulated GPU")
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3 << 29, 24 << 30))
    return put


def bench(gpu, inputs=lambda: (torch.arange(4.0 * ROWS).view(ROWS, 4),), **options):
    return timing.bench("halves", {"half": gpu.half}, inputs, bytes=32 * ROWS, rounds=4, title="Halves",
                        reference=lambda x: x.double() / 2, tolerance=(0, 0), **options)


def test_where_memory_is_short_a_part_of_the_rows_is_timed_and_the_table_says_so(small, capsys):
    gpu = small(most=1024)
    row = bench(gpu)["half"]
    assert row.median_us == pytest.approx(25) and row.max_error == 0
    assert row.gbps == pytest.approx(32 * ROWS / 100 / 1e3)  # a quarter of the bytes in a quarter of the time
    kept = results.session().tables["halves"]
    assert (kept["title"], kept["size"], kept["bytes"]) == ("Halves, 1/4 of the rows", [1024, 4], 8 * ROWS)
    said = capsys.readouterr().out
    assert "Halves: the GPU's memory is short (1.5 of its 24.0 GiB are free); on to 1/2 of the rows." in said
    assert "Halves, 1/4 of the rows" in said


def test_with_enough_memory_nothing_is_cut_or_said(small, capsys):
    gpu = small(most=ROWS)
    bench(gpu)
    kept = results.session().tables["halves"]
    assert (kept["title"], kept["size"], kept["bytes"]) == ("Halves", [ROWS, 4], 32 * ROWS)
    assert "short" not in capsys.readouterr().out


@pytest.mark.parametrize("most, inputs", [
    (0, lambda: (torch.zeros(ROWS, 4),)), (ROWS, lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("none"))),
    (1, lambda: (torch.zeros(2, ROWS),))], ids=["no part fits", "the inputs do not fit", "two rows are not cut"])
def test_where_nothing_fits_that_is_said_and_nothing_is_kept(small, capsys, most, inputs):
    table = bench(small(most), inputs)
    assert table.rows == [] and not results.session().tables and not results.session().notes
    assert "Not measured: the GPU's free memory does not suffice, and no figures of 'halves' are recorded" in (
        capsys.readouterr().out)


def test_a_record_that_is_shown_for_want_of_memory_says_that(small, capsys, monkeypatch):
    monkeypatch.setattr(timing.results, "recorded", lambda lab, name: results.Recorded(
        {"name": "NVIDIA Test"}, {"versions": {}, "date": "2026-01-02T00:00:00Z"},
        {"kind": "bench", "title": "Halves", "size": [4], "dtype": "float32", "bytes": None, "rounds": 2, "limit": None,
         "rows": timing.summarise({"half": timing._Samples([1.0, 1.0])}, None, None)}))
    table = bench(small(0))
    assert not table.measured and table["half"].median_us == 1
    assert "not measured on this machine: the GPU's free memory does not suffice" in capsys.readouterr().out


def test_rows_are_cut_from_the_tensors_that_have_them_and_stay_where_they_are():
    rows, other, weight, number = torch.zeros(513, 3)[1:], torch.zeros(512, 7), torch.zeros(512), 3
    cut = room.first_rows((rows, other, weight, number), 2)
    assert [tuple(t.shape) for t in cut[:3]] == [(256, 3), (256, 7), (512,)] and cut[3] == 3
    assert cut[0].data_ptr() == rows.data_ptr()  # a misaligned input stays one
    for part in (4, 3):  # too few rows, no whole number of them
        with pytest.raises(torch.OutOfMemoryError):
            room.first_rows((rows, other), part)


@pytest.mark.parametrize("told, says", [
    ("97, 43008", "it is 97% busy, and 42.0 GiB of its memory are taken"), ("0, 2048", "0% busy, and 2.0 GiB"),
    ("45, 10", "45% busy, and 0.0 GiB"), ("3, 600", None), ("[N/A], 4", None), (None, None)])
def test_a_gpu_that_others_use_is_told_when_a_lab_starts(monkeypatch, capsys, session, told, says):
    asked = []
    monkeypatch.setattr(machine, "backend", lambda: "cuda")
    monkeypatch.setattr(machine, "gpu", lambda: GPU)
    monkeypatch.setattr(machine, "versions", dict)
    monkeypatch.setattr(machine, "output", lambda *command: asked.append(command) or told)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid="1-2"))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    results.start("04_fused_kernel")
    said = capsys.readouterr().out
    assert asked[0][:3] == ("nvidia-smi", "-i", "GPU-1-2")
    assert ("shared    other processes use this GPU" in said) == (says is not None) and (says or "lab") in said


def test_what_this_process_holds_itself_is_no_neighbours(monkeypatch):
    monkeypatch.setattr(machine, "output", lambda *command: "0, 5000")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid="1-2"))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 4500 << 20)
    assert room.neighbours() is None


def interrupt(x):
    raise KeyboardInterrupt


@pytest.mark.parametrize("ends, error", [(interrupt, KeyboardInterrupt), (lambda x: x + 1, WrongResult)])
def test_what_ended_early_holds_no_memory_and_the_next_run_is_whole(small, ends, error):
    """As in a notebook, which keeps the last traceback."""
    gpu, made = small(ROWS), []

    def inputs():
        made.append(torch.arange(4.0 * ROWS).view(ROWS, 4))
        refs.append(weakref.ref(made[-1]))
        return (made.pop(),)

    refs = []
    half = gpu.half
    gpu.half = ends
    with pytest.raises(error) as kept:
        bench(gpu, inputs)
    assert kept.tb is not None and len(refs) > 1 and all(ref() is None for ref in refs)
    assert not results.session().tables and not results.session().notes
    gpu.half = half
    assert bench(gpu)["half"].median_us == pytest.approx(100)
