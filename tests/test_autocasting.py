"""What autocast and GradScaler do with our GeLU: the types that arrive, and a step that overflows."""

import pytest
import torch

import labkit
from labkit import autocasting, machine


@pytest.fixture(scope="module")
def gelu():
    return labkit.load("gelu")


@pytest.fixture
def rows(session, gelu):
    return {row["called"]: tuple(row.values())[1:] for row in labkit.under_autocast("autocast", gelu)}


def test_an_operator_that_nothing_is_registered_for_gets_what_it_is_given(rows):
    for kind in ("float16", "bfloat16"):
        assert rows[f"ours, under {kind}"] == rows[f"F.gelu, under {kind}"] == ("float32", "float32", "float32")
        assert rows[f"ours after a Linear, under {kind}"] == (kind, kind, "float32")


def test_a_registration_asks_for_its_own_type_whatever_autocast_says(rows):
    for kind in ("float16", "bfloat16"):
        assert rows[f"ours registered for float16, under {kind}"] == ("float16", "float16", "float32")
        assert rows[f"ours with a cast, under {kind}"] == (kind, kind, "float32")


def test_a_registered_copy_computes_what_the_operator_does(gelu):
    device = machine.device()
    copy = autocasting.registered(gelu, device.type, torch.bfloat16)
    x = torch.linspace(-4, 4, 33, device=device, requires_grad=True)
    with torch.autocast(device.type, torch.bfloat16):
        y = copy(x)
    grad, = torch.autograd.grad(y.float().sum(), x)
    narrow = x.detach().bfloat16().requires_grad_()
    expected = gelu(narrow)
    assert torch.equal(y, expected)
    assert torch.equal(grad, torch.autograd.grad(expected.float().sum(), narrow)[0].float())
    assert copy(x).dtype == torch.float32 and torch.equal(copy(x), gelu(x))  # outside of autocast nothing is cast


def test_a_step_that_overflows_is_skipped_and_the_scale_is_halved(session, gelu):
    rows = labkit.scaled_steps("scaler", gelu)
    good, large = [row for row in rows if row["inputs"] == "normal"], [row for row in rows if row["inputs"] == "too large"]
    assert len(good) == 4 and len(large) == 1
    assert all(row["gradients finite"] and row["weights changed"] for row in good)
    row, = large
    assert not row["gradients finite"] and not row["weights changed"] and row["scale after"] == row["scale before"] / 2
    assert [row["scale before"] for row in rows] == [1024, 1024, 2048, 1024, 1024] and rows[-1]["scale after"] == 2048
    assert session().tables["scaler"]["rows"] == rows
