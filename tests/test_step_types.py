"""`step_times`: each way trains the same model, in the types that it names; on a GPU the table."""

import pytest
import torch
from torch import nn

import labkit
from labkit import machine, step_types


class Tiny(nn.Module):
    """Scores of the next token, and the type that its product was computed in."""

    def __init__(self):
        super().__init__()
        self.token, self.head = nn.Embedding(5, 8), nn.Linear(8, 5)

    def forward(self, tokens):
        scores = self.head(self.token(tokens))
        self.seen = scores.dtype
        return scores.float()


@pytest.mark.parametrize("label, seen", [
    ("float32", torch.float32), ("tf32", torch.float32), ("bfloat16 autocast", torch.bfloat16),
    ("float16 autocast, GradScaler", torch.float16)])
def test_a_step_computes_in_its_types_and_changes_float32_weights(label, seen):
    torch.manual_seed(0)
    model, tokens = Tiny(), torch.arange(5)[None]
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    before = [p.clone() for p in model.parameters()]
    setting = torch.backends.cuda.matmul.fp32_precision
    losses = [step_types._step(model, optimizer, scaler, step_types.WAYS[label], tokens, tokens).item() for _ in range(20)]
    assert model.seen == seen and losses[-1] < 0.5 * losses[0]
    assert all(p.dtype == torch.float32 and not torch.equal(p, old) for p, old in zip(model.parameters(), before))
    assert torch.backends.cuda.matmul.fp32_precision == setting


def test_without_a_gpu_the_recorded_table_is_asked_for(monkeypatch):
    monkeypatch.setattr(machine, "backend", lambda: "host")
    monkeypatch.setattr(step_types, "show_recorded", lambda names, title, why: [names, title, why])
    assert labkit.step_times("steps", None, None, "A step") == [["steps"], "A step", "there is no GPU here"]


@pytest.mark.gpu
def test_on_a_gpu_the_ways_are_timed_beside_float32(session):
    tokens = torch.randint(5, (4, 64), device="cuda")
    rows = labkit.step_times("steps", lambda: Tiny().cuda(), (tokens, tokens), "A step", rounds=3)
    assert [row["step in"] for row in rows] == list(step_types.WAYS) and rows[0]["times as fast as float32"] == 1
    assert all(row["median, ms"] > 0 for row in rows) and session().tables["steps"]["bars"]["columns"] == ["median, ms"]
