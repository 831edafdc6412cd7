"""An activation's share of a training step: what is timed, taken apart and shown, and what happens when memory runs out."""

import types

import pytest
import torch

import labkit
from labkit import REPOSITORY, report, results, room, share, timing
from labkit.gpu_trace import Kernel
from labkit.operator import python_part
from labkit.output_errors import WrongResult

rivals = python_part("gelu", "rivals")
GIB = 2**30


@pytest.fixture
def transformer(monkeypatch):
    """The module labs/transformer.py, as a lab imports it."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "labs"))
    import transformer

    return transformer


# -- trains_alike ----------------------------------------------------------------------------------------------

@pytest.fixture
def make_step(transformer):
    return lambda: transformer.trainer(2, 64, sequences=4, device=torch.device("cpu"), heads=4, vocabulary=256, context=32,
                                       learning_rate=3e-3)


def test_forms_of_gelu_train_alike_and_it_is_noted(session, make_step, capsys):
    variants = {"composed": rivals.composed, "composed, pow": rivals.composed_pow, "F.gelu": rivals.native}
    losses = labkit.trains_alike(variants, make_step, "A small model", steps=12)
    assert list(losses) == list(variants) and all(len(found) == 12 for found in losses.values())
    note, = session().notes
    assert note["kind"] == "check" and "3 variants learn alike" in note["outcome"] and not session().tables
    assert "after 11 steps" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [torch.relu, lambda x: x, lambda x: rivals.native(x.detach()),
                                   lambda x: rivals.native(x) * float("nan")], ids=["relu", "identity", "detached", "NaN"])
def test_another_function_or_a_gradient_that_stops_is_found(session, make_step, wrong):
    with pytest.raises(WrongResult, match="wrong"):
        labkit.trains_alike({"composed": rivals.composed, "wrong": wrong}, make_step, "A small model")
    assert not session().notes


def test_a_model_that_does_not_learn_is_found(session):
    with pytest.raises(WrongResult, match="does not fall"):
        labkit.trains_alike({"any": torch.relu}, lambda: lambda activation: torch.tensor(1.0), "A small model", steps=3)


# -- step_share, on a simulated GPU ------------------------------------------------------------------------------

class Model:
    """A step as a simulated GPU sees it: so many µs and bytes for each activation.

    short: the activations that run out of memory. together: how many different ones may follow one another before it does; the
    cache of freed memory, once emptied, holds no pieces of earlier ones.
    """

    def __init__(self, short=(), together=10):
        self.now, self.peak, self.short, self.together = 0.0, 0, short, together
        self.calls, self.recent = [], []

    def step(self, activation):
        label = activation.__name__
        if label in self.short or len({*self.recent[-2:], label}) > self.together:
            raise torch.OutOfMemoryError(f"no memory for {label}")
        self.calls.append(label)
        self.recent.append(label)
        self.now += COST[label]
        self.peak = max(self.peak, 30 * GIB if label == "slow" else 20 * GIB)
        return torch.tensor(1.0)


COST = {"slow": 1000.0, "fast": 850.0, "_nothing": 800.0}
RAN = {"slow": [Kernel("gemm", 0, 700, "rest"), Kernel("mul", 700, 60, "forward"), Kernel("mul", 760, 90, "backward"),
                Kernel("mul", 850, 50, "rest"), Kernel("tanh", 900, 50, "forward"), Kernel("mul", 950, 50, "backward")],
       "fast": [Kernel("gemm", 0, 750, "rest"), Kernel("gelu", 750, 40, "forward"), Kernel("gelu", 790, 60, "backward")],
       "_nothing": [Kernel("gemm", 0, 780, "rest")]}


def slow(x):
    return x


def fast(x):
    return x


VARIANTS = {"composed": slow, "ours": fast}


@pytest.fixture
def gpu(session, monkeypatch):
    """Puts a simulated GPU in place; returns the function that sets the model which runs on it."""
    state = types.SimpleNamespace(model=None)

    class SimulatedGpu:
        scratch = types.SimpleNamespace(nbytes=GIB)

        def flush_l2(self):
            pass

        def mark(self):
            return state.model.now

        def passed(self, event):
            return False

        def microseconds(self, start, stop):
            return stop - start

        def synchronize(self):
            pass

        def now(self):
            return state.model.now

    def profiled(step, activation):
        step(activation)
        return RAN[activation.__name__]

    monkeypatch.setattr(share.machine, "backend", lambda: "cuda")
    monkeypatch.setattr(share, "Gpu", SimulatedGpu)
    monkeypatch.setattr(share, "_profiled", profiled)
    for module in (share, report):
        monkeypatch.setattr(module, "here", lambda: "a simulated GPU")
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: setattr(state.model, "peak", 0))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: state.model.peak)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: state.model.recent.clear())
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 0.0)

    def use(model):
        state.model = model
        return lambda: model.step

    return use


def by_variant(rows):
    return {row["variant"]: row for row in rows}


def test_both_shares_of_a_step_are_told(gpu, session):
    model = Model()
    rows = by_variant(labkit.step_share("share", VARIANTS, gpu(model), "A step", rounds=6))
    assert list(rows) == ["composed", "ours", share.BASELINE]
    assert rows["composed"] == {
        "variant": "composed", "ms a step": 1.0, "10%, ms": 1.0, "90%, ms": 1.0, "all kernels, ms": 1.0, "its kernels": 4,
        "its ms": 0.25, "its share, %": 25.0, "share by leaving it out, %": 20.0, "memory, GiB": 29.0}
    ours, baseline = rows["ours"], rows[share.BASELINE]
    assert (ours["its kernels"], ours["its share, %"]) == (2, round(100 * 100 / 850, 1))
    assert ours["share by leaving it out, %"] == round(100 * 50 / 850, 1) and ours["memory, GiB"] == 19.0
    assert (baseline["its kernels"], baseline["its share, %"], baseline["share by leaving it out, %"]) == (0, 0, 0)
    told = by_variant(session().tables["share"]["rows"]), by_variant(session().tables["share_of_kernels"]["rows"])
    assert {name: told[0][name] | told[1][name] for name in rows} == rows
    assert list(told[1]["ours"]) == ["variant", "its kernels", "its ms", "all kernels, ms"]
    assert not {"its kernels", "its ms", "all kernels, ms"} & set(told[0]["ours"])
    assert session().notes[-1]["outcome"] == "6 rounds"


def test_variants_take_turns_on_one_model(gpu):
    model = Model()
    labkit.step_share("share", VARIANTS, gpu(model), "A step", rounds=12)
    timed = model.calls[-3 - 12 * 3:-3]  # after them, each is profiled once
    rounds = [tuple(timed[at:at + 3]) for at in range(0, len(timed), 3)]
    assert all(sorted(one) == ["_nothing", "fast", "slow"] for one in rounds) and len(set(rounds)) > 3


def test_the_first_variants_kernels_are_kept_by_their_time(gpu, session, monkeypatch):
    labkit.step_share("share", VARIANTS, gpu(Model()), "A step")
    assert session().tables["share_kernels"]["rows"] == [
        {"kernel": "gemm", "launches": 1, "ms": 0.7, "share, %": 70.0},
        {"kernel": "mul, activation backward", "launches": 2, "ms": 0.14, "share, %": 14.0},
        {"kernel": "mul, activation forward", "launches": 1, "ms": 0.06, "share, %": 6.0},
        {"kernel": "mul", "launches": 1, "ms": 0.05, "share, %": 5.0},
        {"kernel": "tanh, activation forward", "launches": 1, "ms": 0.05, "share, %": 5.0}]
    monkeypatch.setattr(share, "MOST_KERNELS", 2)
    *_, last = share.top_kernels(RAN["slow"])
    assert last == {"kernel": "3 others", "launches": 3, "ms": 0.16, "share, %": 16.0}


def test_a_variant_that_runs_out_of_memory_has_no_figures_and_the_others_have(gpu, session):
    rows = by_variant(labkit.step_share("share", VARIANTS, gpu(Model(short=("slow",))), "A step"))
    assert set(list(rows["composed"].values())[1:]) == {None} and len(rows["composed"]) == len(rows["ours"])
    assert rows["ours"]["share by leaving it out, %"] == round(100 * 50 / 850, 1)
    assert session().tables["share_kernels"]["title"] == "A step: the kernels of ours"
    assert "2 of 3 variants fit" in session().notes[-1]["outcome"]


def test_variants_that_fit_alone_but_not_in_turns_lose_the_largest(gpu):
    rows = by_variant(labkit.step_share("share", VARIANTS, gpu(Model(together=2)), "A step"))
    assert rows["composed"]["ms a step"] is None and rows["ours"]["ms a step"] == 0.85


def test_nothing_is_left_out_where_the_step_without_does_not_fit(gpu):
    rows = by_variant(labkit.step_share("share", VARIANTS, gpu(Model(short=("_nothing",))), "A step"))
    assert rows["composed"]["share by leaving it out, %"] is None and rows["composed"]["its share, %"] == 25.0


def test_where_no_variant_fits_every_row_says_so(gpu, session):
    rows = labkit.step_share("share", VARIANTS, gpu(Model(short=tuple(COST))), "A step")
    assert [row["ms a step"] for row in rows] == [None] * 3 and list(session().tables) == ["share"]


def test_what_ran_out_of_memory_is_let_go_of(monkeypatch):
    """Its traceback holds the frames of the call, and these its tensors."""
    released = []

    class Held:
        def __del__(self):
            released.append(True)

    def fails():
        held = Held()
        raise torch.OutOfMemoryError(f"{held}")

    monkeypatch.setattr(room, "free", lambda: released.append("free"))
    assert room.unless_memory_is_short(fails) is None and released == [True, "free"]
    with pytest.raises(RuntimeError, match="other"):
        room.unless_memory_is_short(lambda: (_ for _ in ()).throw(RuntimeError("other")))


def test_a_model_that_does_not_fit_is_told(gpu, session, capsys):
    def make_step():
        raise torch.OutOfMemoryError("too large")

    gpu(Model())
    assert labkit.step_share("share", VARIANTS, make_step, "A step") == [] and not session().tables
    assert "does not fit into this GPU's memory" in capsys.readouterr().out


@pytest.mark.parametrize("variants, rounds", [({}, 20), ({share.BASELINE: slow}, 20), (VARIANTS, 1)])
def test_arguments_that_make_no_sense_are_refused_without_a_gpu_too(variants, rounds):
    with pytest.raises(ValueError, match="step_share: "):
        labkit.step_share("share", variants, None, "A step", rounds)


def test_without_a_gpu_recorded_tables_are_shown_and_no_model_is_made(session, monkeypatch, capsys):
    monkeypatch.setattr(share.machine, "backend", lambda: "host")
    assert labkit.step_share("share", VARIANTS, None, "A step") == []
    assert labkit.share_over("widths", VARIANTS, [1, 2], None, "Widths", "width") is None
    assert labkit.amdahl("cap", {"24 layers": []}, "composed", "ours", "The cap") == []
    assert capsys.readouterr().out.count("there is no GPU here, and nothing is recorded") == 3 and not session().tables


def test_what_is_recorded_is_shown_with_where_it_was_measured(session, monkeypatch, capsys):
    machine_of = {"gpu": {"name": "NVIDIA Test"}, "run": {"versions": {}, "date": "2026-01-02T00:00:00Z"}}
    curve = {"kind": "curve", "title": "Widths", "x": {"label": "width", "values": [512, 1024]},
             "series": {"ours": [3.5, None]}}
    table = results.table_of("A step", [{"variant": "ours", "ms a step": 12.25}])
    monkeypatch.setattr(report.results, "recorded", lambda lab, name: results.Recorded(
        table=curve if name == "widths" else table, **machine_of))
    report.show_recorded(["share", "widths"], "A step", "there is no GPU here")
    lines = capsys.readouterr().out.splitlines()
    caption = "Recorded on NVIDIA Test, 2026-01-02; not measured on this machine: there is no GPU here."
    assert lines[0] == f"A step. {caption}" and lines[2].split() == ["ours", "12.25"]
    assert lines[3] == f"Widths. {caption}" and lines[4].startswith("ours: at most 3.5")
    assert [(note["kind"], note["name"], note["outcome"]) for note in session().notes] == [
        ("recorded", name, "shown, not measured here: NVIDIA Test, 2026-01-02") for name in ("share", "widths")]


# -- share_over and amdahl ----------------------------------------------------------------------------------------

def test_the_share_over_sizes_has_gaps_where_memory_runs_out(gpu, session):
    def make_step(size):
        if size == 4096:
            raise torch.OutOfMemoryError("too large")
        return gpu(Model(short=("slow",) if size == 2048 else ()))()

    curve = labkit.share_over("widths", VARIANTS, [512, 2048, 4096], make_step, "Widths", "width")
    assert curve["series"] == {"composed": [25.0, None, None], "ours": [11.76, 11.76, None]}
    assert session().tables["widths"] == curve and curve["x"]["values"] == [512, 2048, 4096]


def measured(composed, ours, its):
    return [{"variant": "composed", "ms a step": composed, "its share, %": its}, {"variant": "ours", "ms a step": ours},
            {"variant": share.BASELINE, "ms a step": 76}]


def test_the_cap_is_amdahls_and_the_points_are_what_was_measured(gpu, monkeypatch):
    kept = {}
    monkeypatch.setattr(results, "add", kept.__setitem__)
    rows = labkit.amdahl("cap", {"24 layers": measured(100, 80, 25.0), "50 layers": measured(None, 150, None), "none": []},
                         "composed", "ours", "The cap")
    assert rows == [{"model": "24 layers", "share, %": 25.0, "cap": 1.33, share.BASELINE: 1.32, "with ours": 1.25}]
    curve = kept["cap_curve"]
    cap = dict(zip(curve["x"]["values"], curve["series"]["cap"], strict=True))
    assert (cap[0], cap[20], cap[50], cap[60]) == (1, 1.25, 2, 2.5)
    assert curve["points"] == [{"label": "24 layers", "x": 25.0, "y": 1.25}] and kept["cap"]["rows"] == rows


def test_variants_that_were_not_measured_are_named():
    with pytest.raises(ValueError, match="'fused' is none of the variants of 24 layers"):
        labkit.amdahl("cap", {"24 layers": measured(100, 80, 25.0)}, "composed", "fused", "The cap")


# -- on a GPU -----------------------------------------------------------------------------------------------------

@pytest.mark.gpu
def test_a_steps_kernels_on_a_gpu_are_told_apart_exactly(session, transformer):
    layers, gelu = 3, labkit.load("gelu")
    variants = {"composed": rivals.composed, "F.gelu": rivals.native, "ours": gelu,
                "torch.compile": rivals.compiled(rivals.composed)}

    def make_step():
        return transformer.trainer(layers, 256, sequences=32, device=torch.device("cuda"), vocabulary=512, context=256)

    rows = by_variant(labkit.step_share("share", variants, make_step, "A small step", rounds=5))
    operators, = labkit.traffic("traffic", {"composed": rivals.composed}, torch.randn(64, device="cuda"), "Operators")
    assert rows["composed"]["its kernels"] == layers * (operators["operators forward"] + operators["operators backward"])
    assert rows["F.gelu"]["its kernels"] == rows["ours"]["its kernels"] == rows["torch.compile"]["its kernels"] == 2 * layers
    assert rows[share.BASELINE]["its kernels"] == 0 and rows[share.BASELINE]["its share, %"] == 0
    assert 0 < rows["ours"]["its share, %"] < rows["composed"]["its share, %"] < 100
    assert rows["composed"]["memory, GiB"] > rows["ours"]["memory, GiB"] >= rows[share.BASELINE]["memory, GiB"] > 0
    kernels = session().tables["share_kernels"]["rows"]
    assert sum(row["share, %"] for row in kernels) == pytest.approx(100, abs=0.2)
    assert sum(row["ms"] for row in kernels) == pytest.approx(rows["composed"]["all kernels, ms"], rel=0.01)


@pytest.mark.gpu
def test_the_rest_of_a_step_on_a_gpu_is_the_same_whatever_the_activation(transformer):
    step = transformer.trainer(3, 256, sequences=8, device=torch.device("cuda"), vocabulary=512, context=256)
    rest = [len([kernel for kernel in share._profiled(step, activation) if kernel.part == "rest"])
            for activation in (rivals.composed, rivals.native, labkit.load("gelu"), lambda x: x)]
    assert len(set(rest)) == 1 and rest[0] > 50


@pytest.mark.gpu
def test_a_step_on_a_gpu_waits_for_nothing(transformer):
    step = transformer.trainer(2, 256, sequences=8, device=torch.device("cuda"), vocabulary=512, context=256)
    step(rivals.native)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(rivals.native)
    finally:
        torch.cuda.set_sync_debug_mode("default")
