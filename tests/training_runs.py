"""What the tests of the training program share: its folder, a group of one process, a small run."""

import dataclasses

import pytest
import torch

from labkit import REPOSITORY

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def labs():
    """labs/ as the folder of the program, and no torchrun around it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY / "labs"))
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture
def alone():
    """A process group of one on the CPU."""
    from processes import joined

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with joined("cpu") as processes:
        yield processes
    torch.set_num_threads(before)


def tiny(**changes):
    from training import tiny as settings

    return dataclasses.replace(settings(CPU), layers=1, context=16, sequences=4, **changes)


def trained(trainer, steps):
    """The losses of these steps, of the batches that belong to them."""
    from text_batches import Windows, text_tokens

    windows = Windows(text_tokens(), trainer.settings.sequences, trainer.settings.context)
    return [trainer.step(step, *windows[step]).item() for step in steps]
