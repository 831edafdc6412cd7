"""The checkpoints of the training program of labs/, and its processes that share a model out, on the CPU by gloo."""

import dataclasses
import json

import pytest
import torch.nn.functional as F
from training_runs import alone, labs, tiny, trained  # noqa: F401: fixtures among them

from labkit import REPOSITORY
from labkit.torchrun import losses, started


def checkpoints(folder, settings):
    from checkpoints import Checkpoints

    return Checkpoints(folder, dataclasses.asdict(settings))


@pytest.mark.parametrize("precision, way",
                         [("float64", "plain"), ("bfloat16", "ddp"), ("float16", "plain"), ("bfloat16", "fsdp")])
def test_a_run_that_goes_on_has_the_bits_of_one_that_was_not_interrupted(alone, tmp_path, precision, way):
    from training import Trainer

    settings = tiny(precision=precision)
    whole = trained(Trainer(settings, alone, F.gelu, way), range(8))
    first = Trainer(settings, alone, F.gelu, way)
    begun = trained(first, range(4))
    kept = checkpoints(tmp_path, settings)
    kept.save(4, first)
    second = Trainer(settings, alone, F.gelu, way)
    trained(second, range(2))  # other weights and moments than at the start
    assert kept.load(second) == 4
    assert begun + trained(second, range(4, 8)) == whole
    if precision == "float16":
        assert second.scaler.get_scale() == first.scaler.get_scale() and second.scaler.state_dict()["_growth_tracker"] == 8


def test_what_one_way_has_saved_another_can_load(alone, tmp_path):
    from training import Trainer

    settings = tiny(precision="float64")
    saved = Trainer(settings, alone, F.gelu, "fsdp")
    trained(saved, range(3))
    kept = checkpoints(tmp_path, settings)
    kept.save(3, saved)
    plain = Trainer(settings, alone, F.gelu)
    assert kept.load(plain) == 3
    assert trained(plain, range(3, 5)) == pytest.approx(trained(saved, range(3, 5)), rel=1e-14)


def test_only_whole_checkpoints_count_and_two_are_kept(alone, tmp_path):
    from training import Trainer

    settings = tiny(precision="float64")
    trainer, kept = Trainer(settings, alone, F.gelu), checkpoints(tmp_path, settings)
    assert kept.newest() is None and kept.load(trainer) == 0
    for step in (1, 2, 3):
        kept.save(step, trainer)
    for other in ("writing-00000007", "deleting-step-00000008", "step-9"):
        (tmp_path / other).mkdir()
    assert kept.newest() == tmp_path / "step-00000003" and kept.load(trainer) == 3
    kept.save(9, trainer)  # what killed runs had begun goes
    assert sorted(path.name for path in tmp_path.glob("step-0*")) == ["step-00000003", "step-00000009"]
    assert not list(tmp_path.glob("writing-*")) and not list(tmp_path.glob("deleting-*"))


def test_a_run_that_is_killed_while_it_writes_leaves_the_checkpoint_before(alone, tmp_path, monkeypatch):
    import checkpoints as module
    from training import Trainer

    settings = tiny(precision="float64")
    trainer, kept = Trainer(settings, alone, F.gelu), checkpoints(tmp_path, settings)
    kept.save(1, trainer)

    def half(state, checkpoint_id):
        (checkpoint_id / "__0_0.distcp").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(module.dcp, "save", half)
    with pytest.raises(KeyboardInterrupt):
        kept.save(2, trainer)
    assert kept.newest() == tmp_path / "step-00000001" and kept.load(trainer) == 1


def test_a_checkpoint_that_another_host_does_not_see_is_refused(alone, tmp_path, monkeypatch):
    import checkpoints as module
    from training import Trainer

    settings = tiny(precision="float64")
    trainer, kept = Trainer(settings, alone, F.gelu), checkpoints(tmp_path, settings)
    kept.save(1, trainer)

    def of_three(answers, mine):
        answers[:] = [mine, False, mine]

    monkeypatch.setattr(module.dist, "all_gather_object", of_three)
    for call in (lambda: kept.load(trainer), lambda: kept.save(2, trainer)):
        with pytest.raises(ValueError, match=r"is not there for the processes \[1\]. All hosts must share the folder"):
            call()
    assert kept.newest() == tmp_path / "step-00000001"


def test_a_checkpoint_of_other_settings_is_refused_and_the_difference_named(alone, tmp_path):
    from training import Trainer

    settings, other = tiny(precision="float64"), tiny(precision="float64", seed=1)
    trainer = Trainer(settings, alone, F.gelu)
    checkpoints(tmp_path, settings).save(1, trainer)
    with pytest.raises(ValueError, match="was written with seed 0, and this run has 1. Take the same, or another folder"):
        checkpoints(tmp_path, other).load(trainer)


# -- several processes -----------------------------------------------------------------------------------------

def test_fsdp_shares_the_state_out_and_what_two_have_saved_one_and_then_two_by_ddp_go_on_with(tmp_path):
    import train

    def asked(way, steps, folder):
        return ["--tiny", "--device", "cpu", "--precision", "float64", "--way", way, "--steps", str(steps),
                "--folder", str(folder)]

    def by_two(way, steps, folder):
        with started(REPOSITORY / "labs" / "train.py", 2, asked(way, steps, folder), folder) as run:
            return losses(run.finish())

    together, single = tmp_path / "together", tmp_path / "single"
    by_two("fsdp", 4, together)
    first, second = (path.stat().st_size for path in sorted((together / "checkpoints" / "step-00000004").glob("*.distcp")))
    assert 0.8 <= first / second <= 1.25  # each process has written its half of the weights and moments
    train.main(asked("plain", 8, together))
    found = by_two("ddp", 12, together)
    train.main(asked("plain", 12, single))
    whole = losses(map(json.loads, (single / "log.jsonl").read_text().splitlines()))
    assert list(found) == list(whole) == list(range(12))
    assert all(found[step] == [pytest.approx(loss, rel=1e-12)] for step, (loss,) in whole.items())


def test_an_overflow_that_one_process_alone_has_in_its_part_is_skipped_by_both(tmp_path):
    """FSDP2 in float16: gradients are DTensors, of which an overflow is looked for in all parts."""
    path = tmp_path / "overflow.py"
    path.write_text(OVERFLOW)
    with started(path, 2, [str(REPOSITORY / "labs"), str(tmp_path)], tmp_path) as run:
        run.finish()
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == ["32768.0 True"] * 2


OVERFLOW = """
import dataclasses, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
import torch.nn.functional as F
from processes import joined
from training import Trainer, tiny
with joined("cpu") as processes:
    settings = dataclasses.replace(tiny(processes.device), precision="float16", layers=1, sequences=2)
    trainer = Trainer(settings, processes, F.gelu, "fsdp")
    weight = trainer.model.token.weight
    before = weight.to_local().clone()
    unscale = trainer.scaler.unscale_
    def poisoned(optimizer):
        if processes.rank == 0:
            weight.grad.to_local()[0, 0] = float("inf")
        unscale(optimizer)
    trainer.scaler.unscale_ = poisoned
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    trainer.step(0, tokens, tokens)
    same = torch.equal(weight.to_local(), before)
    Path(sys.argv[2], f"rank{processes.rank}").write_text(f"{trainer.scaler.get_scale()} {same}")
"""
