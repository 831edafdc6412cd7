"""labkit.bench on a simulated GPU: its order and statistics, what it flags, refuses and shows."""

import math

import pytest
import torch
from simulated_gpu import GPU, SimulatedGpu

from labkit import machine, output_errors, report, results, timing
from labkit.output_errors import WrongResult, max_error

bench, measure, summarise = timing.bench, timing.measure, timing.summarise


def timed_part(gpu, variants, rounds):
    """The log of the rounds alone: from the first lead-in on."""
    lead_in = ["flush"] * timing.LEAD_IN_FLUSHES
    for place in range(len(gpu.log)):
        if gpu.log[place:place + len(lead_in)] == lead_in:
            return gpu.log[place:]
    raise AssertionError("no lead-in")


def test_every_call_is_timed_behind_a_flush_and_rounds_are_shuffled():
    gpu = SimulatedGpu()
    variants = {name: gpu.variant(name, 100) for name in "abcd"}
    measure(variants, [(0,), (1,)], gpu, rounds=12)
    log = timed_part(gpu, variants, 12)
    assert all(log[place - 1] == "flush" for place, entry in enumerate(log) if entry in variants)
    orders = [tuple(entry for entry in part.split() if entry in variants)
              for part in " ".join(log).split("synchronize") if part.strip()]
    assert len(orders) == 12 and all(sorted(order) == list("abcd") for order in orders)
    assert len(set(orders)) > 6


def test_nothing_is_synchronised_within_a_round():
    gpu = SimulatedGpu()
    measure({name: gpu.variant(name, 100) for name in "abc"}, [(0,), (1,)], gpu, rounds=5)
    assert timed_part(gpu, "abc", 5).count("synchronize") == 5


def test_warm_up_calls_every_variant_often_enough_and_long_enough():
    gpu = SimulatedGpu()
    measure({"a": gpu.variant("a", 100), "b": gpu.variant("b", 1e6)}, [(0,), (1,)], gpu, rounds=3)
    warm = gpu.log[:len(gpu.log) - len(timed_part(gpu, "ab", 3))]
    assert warm.count("a") == warm.count("b") >= timing.WARM_UP_CALLS
    quick = SimulatedGpu()
    measure({"a": quick.variant("a", 100)}, [(0,)], quick, rounds=3)
    assert quick.log.count("a") * 130 > timing.WARM_UP_SECONDS * 1e6


def test_times_are_the_gpus_and_a_starved_variant_is_flagged():
    gpu = SimulatedGpu()
    variants = {"kernel": gpu.variant("kernel", 100, host_us=30),
                "slow host": gpu.variant("slow host", 100, host_us=5000)}
    rows = {row["name"]: row for row in summarise(measure(variants, [(0,)], gpu, rounds=20), 1000, None)}
    assert rows["kernel"]["median_us"] == pytest.approx(100, abs=31)
    assert not rows["kernel"]["host_bound"]
    assert rows["slow host"]["host_bound"]


def test_input_sets_take_turns_for_every_variant():
    gpu, calls = SimulatedGpu(), []
    variants = {name: (lambda tensor, name=name: (calls.append((name, tensor)), gpu.work(100))) for name in "ab"}
    measure(variants, [(0,), (1,), (2,)], gpu, rounds=9)
    timed = calls[-2 * 9:]  # what came before is the warm-up
    assert set(timed) == {(name, tensor) for name in "ab" for tensor in range(3)}


def test_the_outputs_of_the_last_timed_round_are_checked():
    gpu, calls, checked = SimulatedGpu(), [], []

    def variant(tensor):
        gpu.work(100)
        calls.append(object())
        return calls[-1]

    measure({"a": variant}, [(7,)], gpu, rounds=6, check=lambda *arguments: checked.append(arguments))
    assert checked == [("a", (7,), calls[-1])]


def test_outputs_do_not_outlive_their_call():
    gpu = SimulatedGpu()

    class Held:  # freed by its reference count, as a tensor is
        count = 0

        def __init__(self):
            Held.count += 1
            assert Held.count == 1, "an earlier output is still held"

        def __del__(self):
            Held.count -= 1

    def variant(tensor):
        gpu.work(100)
        return Held()

    measure({"a": variant, "b": variant}, [(0,)], gpu, rounds=4, check=lambda *arguments: 0.0)
    assert Held.count == 0


def test_statistics():
    samples = {"copy": timing._Samples([100.0] * 11),
               "mine": timing._Samples([float(time) for time in range(195, 206)])}
    copy, mine = summarise(samples, bytes=2_000_000, limit="copy")
    assert (mine["median_us"], mine["low_us"], mine["high_us"]) == (200, 196, 204)
    assert mine["gbps"] == pytest.approx(10.0)  # 2 MB in 200 us
    assert mine["of_limit"] == pytest.approx(0.5) and copy["of_limit"] == 1
    assert mine["host_bound"] is False and mine["max_error"] is None


@pytest.mark.parametrize("free, one, sets", [
    (1e9, 1000, 4), (1e9, 60 << 20, 2), (1e9, 40 << 20, 3), (1e9, 200 << 20, 2), (100, 1000, 1)])
def test_number_of_input_sets(free, one, sets):
    class Tensor:
        nbytes = one

    made = timing._input_sets(lambda: (Tensor(),), enough_bytes=100 << 20, free_bytes=lambda: free)
    assert len(made) == sets


# -- right or wrong -----------------------------------------------------------------------------------------

def double(x):
    return 2 * x.double()


def test_reference_is_called_in_chunks_and_finds_the_largest_error(monkeypatch):
    monkeypatch.setattr(output_errors, "CHUNK", 50)
    lengths = []

    def reference(x):
        lengths.append(len(x))
        return double(x)

    x = torch.randn(33, 10)
    y = 2 * x
    y[31, 4] += 0.25
    assert max_error("v", reference, (x,), y, 0, 1.0) == pytest.approx(0.25, rel=1e-5)
    assert lengths == [5] * 6 + [3]


@pytest.mark.parametrize("spoil, place", [
    (lambda y: y[17].fill_(math.nan), "[17, 0]"),
    (lambda y: y[32, 9:].add_(1.0), "[32, 9]"),
    (lambda y: y[20].fill_(math.inf), "[20, 0]")])
def test_wrong_outputs_are_refused_with_their_place(monkeypatch, spoil, place):
    monkeypatch.setattr(output_errors, "CHUNK", 50)
    x = torch.randn(33, 10)
    y = 2 * x
    spoil(y)
    with pytest.raises(WrongResult, match="v, output 0: ") as caught:
        max_error("v", double, (x,), y, 1e-3, 1e-3)
    assert place in str(caught.value)


def test_a_bias_is_not_cut_along_with_the_rows(monkeypatch):
    monkeypatch.setattr(output_errors, "CHUNK", 20)
    x, bias = torch.randn(10, 10), torch.randn(10)

    def reference(x, bias):
        return x.double() + bias, x.double()

    assert max_error("v", reference, (x, bias), (x + bias, x), 1e-5, 1e-5) < 1e-5


def test_an_output_that_sums_over_rows_is_compared_whole(monkeypatch):
    monkeypatch.setattr(output_errors, "CHUNK", 20)
    x = torch.randn(10, 10)
    max_error("v", lambda x: x.double().sum(0), (x,), x.sum(0), 1e-5, 1e-5)
    with pytest.raises(WrongResult):
        max_error("v", lambda x: x.double().sum(0), (x,), x.sum(1), 1e-5, 1e-5)


@pytest.mark.parametrize("function", [torch.t, lambda x: x.roll(1, 0)])
def test_an_output_whose_rows_need_other_rows_is_compared_whole_where_asked(function, monkeypatch):
    monkeypatch.setattr(output_errors, "CHUNK", 20)
    x = torch.randn(10, 10)

    def reference(x):
        return function(x).double()

    assert max_error("v", reference, (x,), function(x), 0, 0, rowwise=False) == 0
    with pytest.raises(WrongResult):
        max_error("v", reference, (x,), function(x), 0, 0)
    with pytest.raises(WrongResult):
        max_error("v", reference, (x,), x, 0, 0, rowwise=False)


@pytest.mark.parametrize("output", [lambda x: (2 * x, x), lambda x: (2 * x)[:, :3]])
def test_another_number_or_shape_of_outputs_is_refused(output):
    x = torch.randn(4, 5)
    with pytest.raises(WrongResult):
        max_error("v", double, (x,), output(x), 1e-3, 1e-3)


# -- bench as labs call it ----------------------------------------------------------------------------------

@pytest.fixture
def lab(monkeypatch, tmp_path):
    """A session of a lab, with an empty results folder."""
    monkeypatch.setenv("LABKIT_RESULTS", str(tmp_path))
    monkeypatch.setattr(results, "_session", results.Session(lab="04_fused_kernel"))


@pytest.fixture
def on_gpu(monkeypatch, lab):
    gpu = SimulatedGpu()
    gpu.free_bytes = lambda: 1e9
    monkeypatch.setattr(machine, "backend", lambda: "cuda")
    monkeypatch.setattr(machine, "gpu", lambda: GPU)
    monkeypatch.setattr(machine, "versions", lambda: {"driver": "1.2", "cuda": "13.0", "torch": "2.11.0"})
    monkeypatch.setattr(timing, "Gpu", lambda: gpu)
    return gpu


def variants_on(gpu):
    def copy(x):
        gpu.work(100)
        return x.clone()

    def mine(x):
        gpu.work(125)
        return 2 * x

    return {"copy": copy, "mine": mine}


def test_bench_measures_checks_keeps_and_shows(on_gpu, capsys):
    table = bench("forward", variants_on(on_gpu), lambda: (torch.randn(8, 4),), bytes=64_000, limit="copy",
                  reference=double, tolerance=(1e-6, 1e-6), rounds=10, title="Doubling")
    assert table["mine"].median_us == pytest.approx(125)
    assert table["mine"].of_limit == pytest.approx(0.8)
    assert table["mine"].max_error <= 1e-6 and table["copy"].max_error is None
    kept = results.session().tables["forward"]
    assert kept["size"] == [8, 4] and kept["dtype"] == "float32" and kept["rounds"] == 10
    assert results.session().notes[-1]["kind"] == "measured"
    shown = capsys.readouterr().out
    assert "Measured on NVIDIA Test, driver 1.2, CUDA 13.0, torch 2.11.0" in shown and "80.0%" in shown


def test_a_wrong_variant_raises_and_nothing_is_kept_or_shown(on_gpu, capsys):
    wrong = {**variants_on(on_gpu), "wrong": lambda x: 2.1 * x}
    with pytest.raises(WrongResult, match="^wrong, "):
        bench("forward", wrong, lambda: (torch.ones(8, 4),), bytes=64, limit="copy", reference=double,
              tolerance=(1e-3, 1e-3))
    assert not results.session().tables and not results.session().notes
    assert not capsys.readouterr().out


def refuse(*arguments):
    raise AssertionError("a variant was called without a GPU")


def test_without_a_gpu_the_recorded_figures_are_shown_and_nothing_runs(on_gpu, monkeypatch, capsys):
    bench("forward", variants_on(on_gpu), lambda: (torch.randn(8, 4),), bytes=64_000, limit="copy", rounds=10)
    monkeypatch.setattr(results.sources, "sources_hash", lambda name: "0" * 12)
    monkeypatch.setattr(machine, "clocks", lambda: None)
    results.record()
    results.session().notes.clear()
    capsys.readouterr()
    monkeypatch.setattr(machine, "backend", lambda: "host")
    table = bench("forward", {"copy": refuse, "mine": refuse, "other": refuse}, refuse, bytes=64_000, limit="copy",
                  reference=refuse, tolerance=(0, 0))
    assert table["mine"].median_us == pytest.approx(125) and not table.measured
    shown = capsys.readouterr().out
    assert "Recorded on NVIDIA Test" in shown and "not measured on this machine" in shown
    assert "Not in that record: other." in shown
    note, = results.session().notes  # so that no one takes it for one of this machine
    assert (note["kind"], note["name"]) == ("recorded", "forward")
    assert note["outcome"].startswith("shown, not measured here: NVIDIA Test, 20")


def test_without_a_gpu_or_a_record_it_says_so(lab, monkeypatch, capsys):
    monkeypatch.setattr(machine, "backend", lambda: "host")
    table = bench("forward", {"mine": refuse}, refuse, bytes=1)
    assert table.rows == [] and "no figures of 'forward' are recorded" in capsys.readouterr().out


@pytest.mark.parametrize("arguments, message", [
    ({"limit": "copy"}, "limit 'copy'"), ({"reference": double}, "tolerance"), ({"rounds": 1}, "rounds"),
    ({"bytes": 0}, "bytes")])
def test_arguments_that_do_not_fit_together_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        bench("forward", {"mine": refuse}, refuse, **{"bytes": 1, **arguments})


def test_in_a_notebook_the_table_and_the_bars_are_html(lab, monkeypatch):
    shown = []
    monkeypatch.setattr(report, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    row = {"name": "mine", "median_us": 5.0, "low_us": 4.0, "high_us": 6.0, "gbps": 1.0, "of_limit": None,
           "host_bound": False, "max_error": None}
    record = {"kind": "bench", "title": "t", "size": [1], "dtype": "float32", "bytes": 1, "rounds": 2,
              "limit": None, "rows": [row]}
    report.show_table(record, "Recorded on X", figure=True)
    assert "<table" in shown[0]["text/html"] and "<svg" in shown[0]["text/html"]
    assert "Recorded on X" in shown[0]["text/html"] and "Recorded on X" in shown[0]["text/plain"]



def test_without_bytes_there_is_no_rate(on_gpu, capsys):
    table = bench("forward", variants_on(on_gpu), lambda: (torch.randn(8, 4),), bytes=None, rounds=3)
    assert table["mine"].gbps is None and table["mine"].median_us == pytest.approx(125)
    assert "GB/s" not in capsys.readouterr().out
