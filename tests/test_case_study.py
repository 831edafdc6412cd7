"""The calls of the case study: what a layer keeps, the article's table, losses that are judged, compiled models."""

import math
import types

import pytest
import torch
import torch.nn.functional as F

import labkit
from labkit import article, keeping, learning_curves, share
from labkit.gpu_trace import Kernel
from labkit.output_errors import WrongResult

# -- what a layer keeps ----------------------------------------------------------------------------------------

WEIGHT = torch.randn(8, 8, dtype=torch.float32, requires_grad=True)


def layer(x, activation):
    """A matrix product, which keeps x and the weight, then the activation; all in float32."""
    return activation(x @ WEIGHT)


def kept(variants, **changes):
    arguments = {"x": torch.randn(4, 16, 8), "tokens": 1024, "width": 64, "title": "Kept"} | changes
    return {row["variant"]: row for row in labkit.kept_a_layer("kept", variants, layer, **arguments)}


def test_kept_bytes_are_those_of_the_tensors_that_grow_with_the_tokens(session):
    rows = kept({"tanh": torch.tanh, "gelu": F.gelu, "three": lambda y: torch.exp(torch.tanh(torch.sin(y)))})
    # x alone, 4 bytes for each of 8 channels of a token; the weight grows with nothing.
    assert rows["no activation"]["bytes a token and channel"] == 4.0 and rows["no activation"]["tensors"] == 1
    assert rows["tanh"]["for the activation"] == 4.0 and rows["gelu"]["for the activation"] == 4.0  # its result; its input
    assert rows["three"]["for the activation"] == 12.0 and rows["three"]["tensors"] == 4
    assert rows["gelu"]["MiB a layer, 1,024 tokens of 64"] == round(8 * 1024 * 64 / 2**20)
    assert session().tables["kept"]["rows"] == list(rows.values()) and session().notes[0]["kind"] == "exact"


def test_a_tensor_that_two_operators_keep_counts_once(session):
    rows = kept({"both": lambda y: torch.sin(y) + torch.cos(y)})
    assert rows["both"]["for the activation"] == 4.0


def test_an_odd_batch_is_refused(session):
    with pytest.raises(ValueError, match="x has 3 sequences; it takes an even number"):
        kept({}, x=torch.randn(3, 16, 8))


def test_composed_gelu_keeps_six_tensors_where_a_fused_one_keeps_its_input(session):
    gelu = labkit.load("gelu", backend="host")
    rows = kept({"composed": gelu.rivals.composed, "fused": gelu, "derivative": lambda y: gelu(y, save="derivative")})
    assert [rows[name]["for the activation"] for name in ("composed", "fused", "derivative")] == [24.0, 4.0, 4.0]
    assert keeping.BASELINE in rows


# -- the article's table ---------------------------------------------------------------------------------------

def measured(composed=200.0, forward=190.0, fused=120.0, share_of=45.0):
    return [{"variant": name, "ms a step": ms, "memory, GiB": gib, "its share, %": share_of}
            for name, ms, gib in (("composed", composed, 40.0), ("fused forward", forward, 30.0), ("fused", fused, 25.0))]


def test_the_articles_stages_stand_beside_the_same_stages_here(session):
    first, second, third = labkit.beside_the_article("article", measured(), "Beside")
    assert [row["article, saved, %"] for row in (first, second, third)] == [0.0, 15.8, 41.4]  # as the article has them
    assert [row["here, saved, %"] for row in (first, second, third)] == [0.0, 5.0, 40.0]
    assert third["article, GB saved, %"] == 17.1 and third["here, GiB saved, %"] == 37.5
    theirs, ours = session().tables["article_cap"]["rows"]
    assert theirs["cap"] == 1.18 and theirs["times as fast"] == 1.71 and theirs["share that this needs, %"] == 41.4
    assert ours["cap"] == round(1 / 0.55, 2) and ours["times as fast"] == 1.67 and ours["share that this needs, %"] == 40.0
    points = {point["label"]: point["y"] for point in session().tables["article_cap_curve"]["points"]}
    assert points == {"the article": 1.71, "here": 1.67}


def test_stages_that_were_not_measured_are_named_and_none_is_made_up(session, capsys):
    with pytest.raises(ValueError, match="measured has composed, fused forward; it needs composed, fused forward, fused"):
        labkit.beside_the_article("article", measured()[:2], "Beside")
    assert labkit.beside_the_article("article", [], "Beside") == []
    assert labkit.beside_the_article("article", measured(fused=None), "Beside") == []
    assert capsys.readouterr().out.count("nothing is recorded") == 2 and not session().tables
    assert article.STAGES["forward and gradient fused"] == ("fused", 890, 32.1)


# -- losses that are judged ------------------------------------------------------------------------------------

def falling(to=1.0, noise=0.0):
    """make_step of runs whose loss falls to `to`; the activation's value at 1 is a factor of the late losses."""
    def make_step():
        count = iter(range(1000))

        def step(activation, compiled=False):
            k = next(count)
            factor = activation(torch.tensor(1.0)).item()
            late = factor if k >= 10 else 1.0 + noise * (factor != 1)
            return torch.tensor((to + 9.0 / (1 + k)) * late * (1.0 if not compiled else 1.0 + 1e-9), dtype=torch.float64)

        return step

    return make_step


def test_runs_that_end_alike_pass_however_far_apart_they_were_on_the_way(session):
    variants = {"one": lambda x: x, "other": lambda x: 1.004 * x, "whole": labkit.Compiled(lambda x: x)}
    rows = {row["variant"]: row for row in labkit.learning("losses", variants, falling(noise=0.05), "Runs", 30, tolerance=0.01)}
    assert rows["other"]["largest at a step, %"] == pytest.approx(5.0) and rows["other"]["difference, %"] == pytest.approx(0.4)
    assert rows["whole"]["difference, %"] == 0 and set(session().tables) == {"losses", "losses_curves"}
    assert set(session().tables["losses_curves"]["series"]) == set(variants)


def test_curves_that_would_hide_each_other_are_drawn_as_differences_from_the_first(session):
    variants = {"one": lambda x: x, "other": lambda x: 1.004 * x, "third": lambda x: x, "broken": lambda x: x * math.nan}
    labkit.learning("losses", variants, falling(), "Runs", 12, apart=("other", "broken"))
    tables = session().tables
    assert tables["losses_curves"]["series"] == {"one": [round(1 + 9 / (1 + k), 4) for k in range(12)]}
    assert tables["losses_apart"]["series"]["other"] == [0.0] * 10 + [0.4, 0.4]
    assert tables["losses_apart"]["series"]["broken"][9:] == [0.0, None, None]
    assert set(tables["losses_apart"]["series"]) == {"other", "broken"}


@pytest.mark.parametrize("make_step, wrong, words", [
    (falling(), lambda x: 1.02 * x, "2.0% off that of 'right'"), (falling(), lambda x: x * math.nan, "to None, None% off"),
    (falling(to=20.0), lambda x: 1.5 * x, "it must fall")], ids=["off", "NaN", "rising"])
def test_a_run_that_ends_elsewhere_or_does_not_learn_is_shown_and_found(session, make_step, wrong, words):
    with pytest.raises(WrongResult, match=words):
        labkit.learning("losses", {"right": lambda x: x, "wrong": wrong}, make_step, "Runs", 30, tolerance=0.01)
    assert "losses" in session().tables


def test_a_model_is_let_go_of_before_the_next_is_made(session, monkeypatch):
    alive = []

    class Step:
        def __init__(self):
            alive.append(self)
            assert len(alive) == 1

        def __call__(self, activation):
            return torch.tensor(1.0)

        def __del__(self):
            pass

    monkeypatch.setattr(learning_curves, "free", alive.clear)
    labkit.learning("losses", {"one": abs, "two": abs}, Step, "Runs", 10)
    assert alive == []


# -- the whole model through torch.compile -------------------------------------------------------------------------

def test_of_a_compiled_model_the_activations_part_is_left_open(monkeypatch):
    ran = [Kernel("gemm", 0, 700, "rest"), Kernel("gelu", 700, 100, "forward")]
    timings = {name: {"median_us": us, "low_us": us, "high_us": us}
               for name, us in (("ours", 1000.0), ("whole", 800.0), (share.BASELINE, 900.0))}
    memory = dict.fromkeys(timings, 2**31)
    rows = {name: share._row(name, timings, dict.fromkeys(timings, ran), memory, name == "whole", 16384) for name in timings}
    assert rows["ours"]["its share, %"] == 10.0 and rows["ours"]["share by leaving it out, %"] == 10.0
    assert rows["ours"]["tokens/s"] == 16_384_000
    whole = rows["whole"]
    assert {whole[name] for name in ("its share, %", "share by leaving it out, %", "its kernels", "its ms")} == {None}
    assert whole["ms a step"] == 0.8 and whole["all kernels, ms"] == 0.8 and whole["memory, GiB"] == 2.0


def test_a_compiled_variant_asks_the_step_for_the_compiled_model():
    asked = []

    def step(activation, compiled=False):
        asked.append((activation, compiled))

    share.run(step, abs)
    share.run(step, labkit.Compiled(abs))
    assert asked == [(abs, False), (abs, True)] and not isinstance(abs, types.FunctionType)
