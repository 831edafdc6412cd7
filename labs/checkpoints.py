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

KEPT = 2  # the newest, and the one before: should a disk damage the newest, delete its folder, and the run goes on from that
_WHOLE = re.compile(r"step-(\d{8})")


class Checkpoints:
    """The checkpoints in one folder, which all processes must see, those of other hosts too.

    settings: what a run must have in common with them. All processes must call `save` and `load` together. Both raise
    ValueError where a process does not see the folder that process 0 sees.
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
            for left in [*self.folder.glob("writing-*"), *self.folder.glob("deleting-*")]:  # by a run that was killed
                shutil.rmtree(left)
            beside.mkdir(parents=True)
            with (beside / "settings.json").open("w", encoding="utf-8") as file:
                json.dump(self.settings, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
        dist.barrier()
        _seen_by_all(beside)
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
        chosen = [self.newest() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(chosen)  # one decides: directories of a network disk may look different elsewhere
        found = chosen[0]
        if found is None:
            return 0
        _seen_by_all(found)
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


def _seen_by_all(folder: Path) -> None:
    seen = [False] * dist.get_world_size()
    dist.all_gather_object(seen, (folder / "settings.json").is_file())
    if not all(seen):
        raise ValueError(f"{folder} is not there for the processes {[rank for rank, there in enumerate(seen) if not there]}. "
                         "All hosts must share the folder of the checkpoints, under one name")


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
