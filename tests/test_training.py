"""The training program of labs/: its batches, its step, its checkpoints, in one process. What several do, lab 10 checks."""

import dataclasses
import json
import math
import weakref

import pytest
import torch
import torch.nn.functional as F

import labkit
from labkit import REPOSITORY, machine
from labkit.torchrun import losses, started

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


# -- batches ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("processes", [1, 2, 3, 6])
def test_any_number_of_processes_sees_the_same_whole_batches(processes):
    from text_batches import Windows

    text = torch.arange(1000)
    parts = [Windows(text, 6, 8, seed=5, part=part, parts=processes)[11] for part in range(processes)]
    whole = Windows(text, 6, 8, seed=5)[11]
    for each, expected in zip(zip(*parts), whole):
        assert torch.equal(torch.cat(each), expected)


def test_a_batch_follows_from_its_number_and_targets_are_the_tokens_that_come_next():
    from text_batches import Windows, loader

    windows = Windows(torch.arange(5000), 4, 10)
    late = list(loader(windows, range(5, 8), CPU))
    assert len(late) == 3 and all(torch.equal(a, b) for one, other in zip(late, list(loader(windows, range(8), CPU))[5:])
                                  for a, b in zip(one, other))
    assert not torch.equal(late[0][0], late[1][0])
    for tokens, targets in late:
        assert torch.equal(tokens + 1, targets) and tokens.shape == (4, 10)  # the text is 0, 1, 2, ...


def test_batches_that_cannot_be_are_refused():
    from text_batches import Windows

    with pytest.raises(ValueError, match="sequences is 6, which 4 processes cannot share evenly"):
        Windows(torch.arange(100), 6, 8, parts=4)
    with pytest.raises(ValueError, match="context is 100, and the text has 100"):
        Windows(torch.arange(100), 6, 100)


# -- a step ----------------------------------------------------------------------------------------------------

def test_steps_are_those_of_adamw_with_a_clipped_gradient_written_out(alone):
    """In float64, the formulas of the paper (Loshchilov and Hutter, algorithm 2), with the gradient of autograd."""
    from text_batches import Windows, text_tokens
    from training import Trainer

    settings = tiny(precision="float64", clip=0.7, warm_up=2)
    trainer = Trainer(settings, alone, F.gelu)
    twin = Trainer(settings, alone, F.gelu).plain  # only its weights are used
    windows, moments = Windows(text_tokens(), 4, 16), {}
    for step in range(3):
        tokens, targets = windows[step]
        loss = twin.loss(tokens, targets)
        gradients = dict(zip([name for name, _ in twin.named_parameters()],
                             torch.autograd.grad(loss, list(twin.parameters()))))
        norm = math.sqrt(sum((gradient**2).sum().item() for gradient in gradients.values()))
        assert norm > settings.clip
        rate = settings.learning_rate * (1 / 2 if step == 0 else 1)
        with torch.no_grad():
            for name, weight in twin.named_parameters():
                gradient = gradients[name] * settings.clip / (norm + 1e-6)
                first, second = moments.get(name, (torch.zeros_like(weight), torch.zeros_like(weight)))
                first, second = 0.9 * first + 0.1 * gradient, 0.95 * second + 0.05 * gradient**2
                moments[name] = first, second
                corrected = first / (1 - 0.9**(step + 1)), second / (1 - 0.95**(step + 1))
                weight -= rate * (corrected[0] / (corrected[1].sqrt() + 1e-8) + 0.1 * weight)
        assert trainer.step(step, tokens, targets).item() == pytest.approx(loss.item(), rel=1e-13)
        for (name, weight), expected in zip(trainer.plain.named_parameters(), twin.parameters()):
            assert torch.allclose(weight, expected, rtol=1e-10, atol=1e-12), name


@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16", "float16"])
def test_it_learns_in_each_precision(alone, precision):
    from training import Trainer

    losses = trained(Trainer(tiny(precision=precision), alone, F.gelu), range(12))
    assert losses[-1] < 0.9 * losses[0] and all(map(math.isfinite, losses))


def test_a_step_can_run_the_same_weights_through_another_form_of_the_model(alone):
    from training import Trainer

    class Form(torch.nn.Module):  # as torch.compile returns one: it is there, and has no length
        def __init__(self, model):
            super().__init__()
            self.model = model

        def __len__(self):
            raise TypeError("no length")

        def forward(self, tokens):
            return 0 * self.model(tokens)

    trainer = Trainer(tiny(precision="float64"), alone, F.gelu)
    tokens = torch.zeros(4, 16, dtype=torch.int64)
    assert trainer.step(0, tokens, tokens, model=Form(trainer.plain)).item() == pytest.approx(math.log(64))
    assert trainer.step(0, tokens, tokens).item() != pytest.approx(math.log(64), rel=1e-6)


@pytest.mark.parametrize("name", ["composed", "fused forward", "fused", "fused, derivative kept", "F.gelu"])
def test_each_form_of_gelu_has_the_values_and_the_gradient_of_the_reference(name):
    from gelus import NAMES, gelus

    gelu = labkit.load("gelu", backend="host")
    forms = gelus(gelu)
    assert tuple(forms) == NAMES
    x = torch.linspace(-4, 4, 97, dtype=torch.float64).requires_grad_()
    y = forms[name](x)
    gradient, = torch.autograd.grad(y, x, torch.ones_like(y))
    assert torch.allclose(y, gelu.reference.gelu(x.detach()), rtol=1e-12, atol=1e-14)
    assert torch.allclose(gradient, gelu.reference.gelu_derivative(x.detach()), rtol=1e-11, atol=1e-13)


def test_settings_and_ways_that_cannot_be_are_refused(alone):
    from processes import Processes, shared_out
    from training import Settings

    for name, value in (("layers", 0), ("learning_rate", -1.0), ("sequences", 0)):
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be more than 0"):
            Settings(**{name: value})
    with pytest.raises(ValueError, match="precision is 'half'; there are float64"):
        Settings(precision="half")
    with pytest.raises(ValueError, match="the way is 'dpp'"):
        shared_out(torch.nn.Linear(1, 1), "dpp", alone, None)
    with pytest.raises(ValueError, match='2 processes would each train a model of its own; take the way "ddp"'):
        shared_out(torch.nn.Linear(1, 1), "plain", Processes(0, 2, CPU), None)


def test_more_processes_than_gpus_are_refused(monkeypatch):
    from processes import joined

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in (("RANK", "2"), ("WORLD_SIZE", "3"), ("LOCAL_RANK", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="process 2 of this host has no GPU of its own: there are 2"):
        with joined("cuda"):
            pass


# -- checkpoints -----------------------------------------------------------------------------------------------

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


# -- the program -----------------------------------------------------------------------------------------------

def test_the_program_goes_on_where_it_was_and_writes_what_it_did(tmp_path, capsys):
    import train

    arguments = ["--tiny", "--device", "cpu", "--layers", "1", "--context", "8", "--sequences", "2", "--precision", "float64",
                 "--gelu", "F.gelu", "--save-every", "2", "--folder", str(tmp_path)]
    train.main([*arguments, "--steps", "3"])
    train.main([*arguments, "--steps", "5"])
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [event["start"] for event in events if "start" in event] == [0, 3] and events[-1] == {"end": 5}
    assert [event["step"] for event in events if "step" in event] == [0, 1, 2, 3, 4]
    assert events[0]["layers"] == 1 and events[0]["processes"] == 1 and events[0]["precision"] == "float64"
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")] == [json.dumps(e) for e in events]


def test_a_model_that_does_not_fit_is_told_how_many_sequences_would_once_it_is_gone(monkeypatch):
    import train

    models = []

    def short(options):
        model = torch.nn.Linear(1, 1)
        models.append(weakref.ref(model))
        raise torch.OutOfMemoryError(f"CUDA out of memory, with {type(model).__name__}")

    def fit(layers, width, vocabulary, context, most):
        assert models[0]() is None, "the model is still there"
        assert (layers, most) == (3, 32)
        return 4

    monkeypatch.setattr(train, "run", short)
    monkeypatch.setattr(train, "sequences_that_fit", fit)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match=r"(?s)with Linear.*32 sequences do not fit on 2 of these GPUs; about 8 do: --sequences 8\."):
        train.main(["--device", "cpu", "--layers", "3", "--sequences", "32"])


# -- several processes -----------------------------------------------------------------------------------------

def test_fsdp_shares_the_state_out_and_what_two_have_saved_one_and_then_two_by_ddp_go_on_with(tmp_path):
    program, folder = REPOSITORY / "labs" / "train.py", tmp_path / "run"

    def trained(way, processes, steps):
        arguments = ["--tiny", "--device", "cpu", "--precision", "float64", "--way", way, "--steps", str(steps), "--folder", str(folder)]
        with started(program, processes, arguments, folder) as run:
            return losses(run.finish())

    trained("fsdp", 2, 4)
    first, second = (path.stat().st_size for path in sorted((folder / "checkpoints" / "step-00000004").glob("*.distcp")))
    assert 0.8 <= first / second <= 1.25  # each process has written its half of the weights and moments
    trained("plain", 1, 8)
    found = trained("ddp", 2, 12)
    folder = tmp_path / "whole"
    whole = trained("plain", 1, 12)
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


@pytest.mark.gpu
def test_on_a_gpu_the_forms_agree_and_a_compiled_model_steps_like_an_eager_one():
    from gelus import gelus
    from training import stepper
    from training import tiny as settings

    gelu, losses = labkit.load("gelu"), {}
    for name, form in gelus(gelu).items():
        step = stepper(settings(machine.device()), machine.device())
        losses[name] = [step(form).item() for _ in range(10)]
    step = stepper(settings(machine.device()), machine.device())
    losses["compiled"] = [step(gelu.rivals.composed, compiled=True).item() for _ in range(10)]
    assert all(found == pytest.approx(losses["composed"], rel=0.02) for found in losses.values())


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_on_a_gpu_a_run_goes_on_with_the_same_bits(tmp_path, precision):
    import train

    arguments = ["--tiny", "--precision", precision, "--save-every", "3"]
    train.main([*arguments, "--steps", "6", "--folder", str(tmp_path / "whole")])
    for steps in ("3", "6"):
        train.main([*arguments, "--steps", steps, "--folder", str(tmp_path / "parts")])
    logs = [[json.loads(line) for line in (tmp_path / run / "log.jsonl").read_text().splitlines()]
            for run in ("whole", "parts")]
    whole, parts = ([event["loss"] for event in events if "loss" in event] for events in logs)
    assert len(whole) == 6 and parts == whole


@pytest.mark.gpu
def test_fsdp_fetches_products_weights_in_16_bits_and_norms_in_float32():
    from processes import joined
    from training import Trainer

    settings = tiny(precision="bfloat16", width=512, heads=8)
    seen = []
    with joined("cuda") as processes:
        trainer = Trainer(settings, processes, F.gelu, "fsdp")
        block = trainer.model.blocks[0]
        block.qkv.register_forward_pre_hook(
            lambda module, inputs: seen.append((module.weight.dtype, block.norm_mlp.weight.dtype)))
        tokens = torch.zeros(4, 16, dtype=torch.int64, device=processes.device)
        trainer.step(0, tokens, tokens)
        assert seen == [(torch.bfloat16, torch.float32)]
        assert {type(weight).__name__ for weight in trainer.model.parameters()} == {"DTensor"}
        assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32}
