"""`labkit.loss_curves`: what each way of training loses, and that it is lost for the reason that the lab gives."""

import math

import pytest
import torch
from torch import nn

import labkit
from labkit import REPOSITORY, machine, mixed_training


@pytest.fixture(autouse=True)
def labs(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "labs"))


@pytest.fixture
def train(session):
    """Runs `loss_curves` on a small Transformer with our GeLU; returns {way: row}."""
    import sums
    from transformer import Transformer

    gelu = labkit.load("gelu", backend="host")

    def run(steps=60, **options):
        batches = sums.batches(steps, 16, 16, "cpu")
        rows = labkit.loss_curves("losses", lambda: Transformer(1, 32, 2, len(sums.ALPHABET), 16, gelu), batches,
                                  "A small Transformer", learning_rate=3e-3, **options)
        return {row["trained in"]: row for row in rows}

    return run


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(machine, "backend", lambda: "host")


def test_float16_loses_small_gradients_unless_they_are_scaled(on_cpu, train, session):
    rows = train()
    loss = {label: row["final loss"] for label, row in rows.items()}
    for label in ("bfloat16 autocast", "float16 autocast, GradScaler"):
        assert loss[label] == pytest.approx(loss["float32"], rel=0.01) and rows[label]["gradients that are 0, %"] < 1
    assert loss["float16 autocast, no scaler"] > 1.1 * loss["float32"]
    assert rows["float16 autocast, no scaler"]["gradients that are 0, %"] > 30
    assert loss["float16 weights"] is None and rows["float16 weights"]["not finite from step"] == 1
    squares = {label: row["first squares that are 0, %"] for label, row in rows.items()}
    assert squares["float16 weights"] > 99 and squares["float32"] < 20 and squares["bfloat16 weights"] < 20
    assert rows["bfloat16 weights"]["weights that change, %"] < 90 < rows["bfloat16 autocast"]["weights that change, %"]
    curve = session().tables["losses_curves"]
    assert curve["title"].endswith("on the CPU") and all(len(values) == 60 for values in curve["series"].values())
    assert curve["series"]["float16 weights"][1:] == [None] * 59
    end, = curve["points"]
    assert end["label"].startswith("float16 weights") and (end["x"], end["y"]) == (0, curve["series"]["float16 weights"][0])
    assert curve["series"]["float32"][0] == pytest.approx(math.log(12), rel=0.1)  # it begins by guessing among 12 characters


def test_with_the_loss_of_a_small_batch_float16_needs_no_scaler(on_cpu, train, monkeypatch):
    ways = ("float32", "float16 autocast, no scaler")
    monkeypatch.setattr(mixed_training, "WAYS", {label: mixed_training.WAYS[label] for label in ways})
    rows = train(steps=30, mean_over=256)
    assert rows[ways[1]]["final loss"] == pytest.approx(rows["float32"]["final loss"], rel=0.01)


class Table(nn.Module):
    """Scores of 2 tokens from a table of them, as a Linear that autocast knows: a model whose gradient is known."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 2))

    def forward(self, tokens):
        return nn.functional.linear(nn.functional.one_hot(tokens, 2).to(self.weight.dtype), self.weight)


def test_a_skipped_step_is_counted(on_cpu, session, monkeypatch):
    monkeypatch.setattr(mixed_training, "WAYS", {"scaled": mixed_training.Way(autocast=torch.float16, scaled=True)})
    tokens = torch.tensor([[0, 1]])
    # Each score's gradient is at first +-1/2, over 1/8: in float16 it is finite from a scale of 2^13 on, and the first is 2^16.
    row, = labkit.loss_curves("skips", Table, [(tokens, tokens)] * 20, "A table", mean_over=1 / 8)
    assert row["steps skipped"] == 3 and row["final loss"] < 0.999 * math.log(2)
    assert row["weights that change, %"] == pytest.approx(100 * 17 / 20)
    assert row["first squares that are 0, %"] == 0  # of the fourth step, the first that was taken


def test_without_a_step_taken_there_are_no_squares_to_count(on_cpu, session, monkeypatch):
    monkeypatch.setattr(mixed_training, "WAYS", {"scaled": mixed_training.Way(autocast=torch.float16, scaled=True)})
    tokens = torch.tensor([[0, 1]])
    row, = labkit.loss_curves("skips", Table, [(tokens, tokens)] * 10, "A table", mean_over=1 / 2**20)
    assert row["steps skipped"] == 10 and row["first squares that are 0, %"] is None


def test_the_number_of_threads_is_what_it_was(on_cpu, session, monkeypatch):
    before = torch.get_num_threads()
    tokens = torch.tensor([[0, 1]])
    labkit.loss_curves("line", Table, [(tokens, tokens)] * 10, "A table")
    assert torch.get_num_threads() == before


def test_too_few_batches_are_refused(session):
    with pytest.raises(ValueError, match="batches has 3 of them; it takes at least 10"):
        labkit.loss_curves("few", Table, [None] * 3, "A table")


@pytest.mark.parametrize("backend, capability, native", [("cuda", "7.5", False), ("cuda", "8.0", True), ("cuda", "10.0", True),
                                                         ("host", "7.5", True)])
def test_bfloat16_is_native_from_ampere_on_or_it_is_said(session, monkeypatch, capsys, backend, capability, native):
    monkeypatch.setattr(machine, "gpu", lambda: {"capability": capability, "name": "a GPU"})
    monkeypatch.setattr(machine, "backend", lambda: backend)
    assert machine.native_bfloat16() is native
    monkeypatch.setattr(mixed_training, "here", lambda: "a GPU")
    tokens = torch.tensor([[0, 1]])
    monkeypatch.setattr(mixed_training, "WAYS", {"float32": mixed_training.Way()})
    labkit.loss_curves("line", Table, [(tokens, tokens)] * 10, "A table")
    assert ("this GPU has no instructions for it" in capsys.readouterr().out) is not native


def test_the_text_of_sums_is_right_and_targets_follow_tokens():
    import sums

    lines = sums.text(4000).splitlines()[:-1]
    assert all(eval(line.partition("=")[0]) == int(line.partition("=")[2]) for line in lines) and len(set(lines)) > 90
    assert set(sums.text(4000)) == set(sums.ALPHABET)
    (tokens, targets), other = sums.batches(2, 3, 8, "cpu")
    assert tokens.shape == targets.shape == (3, 8) and torch.equal(tokens[:, 1:], targets[:, :-1])
    assert not torch.equal(tokens, other[0]) and torch.equal(tokens, sums.batches(2, 3, 8, "cpu")[0][0])
    shown = "".join(sums.ALPHABET[place] for place in tokens[0])
    assert shown in sums.text(1 << 16)


@pytest.mark.gpu
def test_a_gpu_shows_the_same_failures(session):
    import sums
    from transformer import Transformer

    gelu, device = labkit.load("gelu"), machine.device()

    def make_model():
        return Transformer(2, 128, 4, len(sums.ALPHABET), 32, gelu).to(device)

    rows = labkit.loss_curves("losses", make_model, sums.batches(80, 64, 32, device), "A Transformer")
    loss = {row["trained in"]: row["final loss"] for row in rows}
    assert loss["float16 autocast, GradScaler"] == pytest.approx(loss["float32"], rel=0.05)
    assert loss["float16 autocast, no scaler"] > 1.1 * loss["float32"] and loss["float16 weights"] is None


def test_the_least_losses_are_those_of_the_text():
    import sums

    found = sums.least_losses()
    counts = [sums.text(200_000).count(character) for character in sums.ALPHABET]
    shares = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    assert found["knows the characters"] == pytest.approx(-(shares * shares.log()).sum().item(), rel=2e-3)
    assert found["can add"] == pytest.approx(200 * math.log(10) / 645)  # two digits of each of 645 characters are news
    triangle = [min(s + 1, 19 - s) / 100 for s in range(19)]  # how often each sum of two digits comes
    of_the_sum = -sum(share * math.log(share) for share in triangle)
    assert found["knows the layout"] == pytest.approx((2 * math.log(10) + of_the_sum) / 6.45)
