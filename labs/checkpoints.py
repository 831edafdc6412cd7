"""Checkpoints of a training run: whole or not there, and readable by another number of processes or another way to share.

A checkpoint is written beside its place and renamed, so that a run that is killed while it writes leaves the one before.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

KEPT = 2  # the newest; the one before it is there should the disk have lost a part of that
_WHOLE = re.compile(r"step-(\d{8})")


class Checkpoints:
    """The checkpoints in one folder, which all processes see. settings: what a run must have in common with them.

    All processes must call `save` and `load` together.
    """

    def __init__(self, folder: Path, settings: dict):
        self.folder, self.settings = folder, settings

    def newest(self) -> Path | None:
        """The newest checkpoint that was written to its end."""
        found = [path for path in self.folder.glob("step-*") if _WHOLE.fullmatch(path.name)]
        return max(found, default=None)

    def save(self, step: int, trainer) -> None:
        """Writes what a run needs to go on before `step`; older ones than the KEPT newest go."""
        place, beside = self.folder / f"step-{step:08}", self.folder / f"writing-{step:08}"
        if dist.get_rank() == 0:
            shutil.rmtree(beside, ignore_errors=True)  # of a run that was killed
            beside.mkdir(parents=True)
            (beside / "settings.json").write_text(json.dumps(self.settings, indent=1) + "\n", encoding="utf-8")
        dist.barrier()
        dcp.save(_state(trainer), checkpoint_id=beside)
        dist.barrier()
        if dist.get_rank() == 0:
            _forget(place)  # written by a run that went back to an earlier one
            _synced(beside)
            beside.rename(place)
            _synced(self.folder)
            for old in sorted(path for path in self.folder.glob("step-*") if _WHOLE.fullmatch(path.name))[:-KEPT]:
                _forget(old)
        dist.barrier()

    def load(self, trainer) -> int:
        """Puts the newest checkpoint into the trainer; returns the step that comes next, 0 where there is no checkpoint.

        Raises ValueError where it was written with other settings, and names them.
        """
        found = self.newest()
        if found is None:
            return 0
        written = json.loads((found / "settings.json").read_text(encoding="utf-8"))
        if others := [f"{name} {written.get(name)!r}, and this run has {value!r}"
                      for name, value in self.settings.items() if written.get(name) != value]:
            raise ValueError(f"{found} was written with {'; '.join(others)}. Take the same, or another folder")
        state = _state(trainer)
        dcp.load(state, checkpoint_id=found)
        set_state_dict(trainer.model, trainer.optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])
        trainer.scaler.load_state_dict(state["scaler"])
        return int(_WHOLE.fullmatch(found.name)[1])


def _state(trainer) -> dict:
    model, optimizer = get_state_dict(trainer.model, trainer.optimizer)  # by the names of the plain model, wrapped or not
    return {"model": model, "optimizer": optimizer, "scaler": trainer.scaler.state_dict()}


def _forget(checkpoint: Path) -> None:
    if checkpoint.exists():
        going = checkpoint.with_name(f"deleting-{checkpoint.name}")  # half deleted it must not look whole
        shutil.rmtree(going, ignore_errors=True)
        checkpoint.rename(going)
        shutil.rmtree(going)


def _synced(folder: Path) -> None:
    """What names the folder holds is on the disk, not only in the system's memory."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
