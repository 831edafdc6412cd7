"""What a reader has set in PyTorch, in an earlier cell or around the call, changes nothing of what checks and traces find."""

import pytest
import torch

import labkit
from labkit import REPOSITORY

MODES = {
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "another device": lambda: torch.device("meta"),  # stands for a GPU: nothing that is made there can be used on the CPU
}


def tanh_form(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


def differentiable(op):
    return {name: lambda x, version=version: op(x, version=version) for name, version in (("ours", 7), ("before", 4))}


CALLS = {
    "check": lambda gelu: labkit.check(labkit.load("copy"), versions=[1], dtypes=[torch.float32, torch.float64]),
    "trace": lambda gelu: labkit.trace("copy", 1, show=False).findings,
    "schedules": lambda gelu: labkit.schedules("copy", 1, seeds=1),
    "owners": lambda gelu: labkit.owners("copy", 1, size=64, show=False).thread.tolist(),
    "grade": lambda gelu: labkit.grade("barrier", REPOSITORY / "exercises" / "barrier" / "solution.cu", show=False),
    "ulp": lambda gelu: labkit.ulp("ulp", {"torch": tanh_form}, gelu.reference.gelu, "t", dtypes=(torch.float16,)),
    "at_the_edges": lambda gelu: labkit.at_the_edges("edges", differentiable(gelu), "Edges"),
    "under_autocast": lambda gelu: labkit.under_autocast("autocast", gelu),
    "scaled_steps": lambda gelu: labkit.scaled_steps("scaler", gelu),
}


AS_IN_A_NEW_PROCESS = (True, False, False, False, torch.device("cpu"))


def state():
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
            torch.is_anomaly_enabled(), torch.get_default_device())


@pytest.mark.parametrize("name", CALLS)
def test_what_the_reader_has_set_changes_nothing_and_stays_set(name, session, monkeypatch):
    monkeypatch.setenv("LABKIT_BACKEND", "host")
    gelu = labkit.load("gelu")
    plainly = repr(CALLS[name](gelu))
    for mode, entered in MODES.items():
        with entered():
            before = state()
            assert before != AS_IN_A_NEW_PROCESS, mode
            assert repr(CALLS[name](gelu)) == plainly, mode
            assert state() == before, mode
