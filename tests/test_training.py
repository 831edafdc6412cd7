"""The training program of labs/: its batches, its step, and the command line, in one process."""

import gc
import json
import math
import weakref

import pytest
import torch
import torch.nn.functional as F
from training_runs import CPU, alone, labs, tiny, trained  # noqa: F401: fixtures among them

import labkit
from labkit import machine

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
    assert events[0] | {"layers": 1, "processes": 1, "precision": "float64", "way": "plain", "gelu": "F.gelu",
                        "compile": False} == events[0]
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")] == [json.dumps(e) for e in events]


@pytest.fixture
def ended():
    """Ends the group of processes that a refused run leaves, at a call and after the test."""
    def end():
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    yield end
    end()


@pytest.mark.parametrize("arguments, words", [
    ("--steps 0", "--steps: 0 is not a whole number from 1 on"), ("--save-every 0", "--save-every: 0 is not a whole number"),
    ("--precision half", "--precision: invalid choice: 'half'")])
def test_numbers_and_names_that_cannot_be_are_refused_by_the_command_line(capsys, arguments, words):
    import train

    with pytest.raises(SystemExit) as ended:
        train.main(["--tiny", "--device", "cpu", *arguments.split()])
    assert ended.value.code == 2 and words in capsys.readouterr().err


@pytest.mark.parametrize("arguments, words", [
    ("--vocabulary 12", "vocabulary is 12, and the text has 13 characters"),
    ("--layers 0", "layers is 0; it must be more than 0"), ("--heads 3", "width is 32, which 3 heads cannot share evenly"),
    ("--context 1048576", "context is 1048576, and the text has"),
    ("--device cuda", "PyTorch sees no GPU here; take --device cpu --tiny")])
def test_what_cannot_be_trained_is_refused_in_a_line_and_nothing_is_written(monkeypatch, tmp_path, capsys, ended, arguments,
                                                                            words):
    import train

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=f"^train.py: {words}"):
        train.main(["--tiny", "--device", "cpu", "--folder", str(tmp_path / "run"), *arguments.split()])
    assert not (tmp_path / "run").exists() and "{" not in capsys.readouterr().out


def test_a_run_that_has_more_steps_than_are_asked_for_is_left_alone(tmp_path, ended):
    import train

    arguments = ["--tiny", "--device", "cpu", "--layers", "1", "--context", "8", "--sequences", "2", "--folder", str(tmp_path)]
    train.main([*arguments, "--steps", "3"])
    before = (tmp_path / "log.jsonl").read_text()
    with pytest.raises(SystemExit, match="is already at step 3, and --steps is 2"):
        train.main([*arguments, "--steps", "2"])
    ended()
    assert (tmp_path / "log.jsonl").read_text() == before
    train.main([*arguments, "--steps", "3"])  # as torchrun does where a process dies after its last step
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-2])["start"] == 3


def test_an_error_that_is_not_about_what_was_asked_for_keeps_its_traceback(monkeypatch):
    import train

    monkeypatch.setattr(train, "run", lambda options: json.loads("{"))  # raises a ValueError, in a file of another folder
    with pytest.raises(ValueError, match="Expecting property name"):
        train.main(["--tiny"])


def test_before_a_large_model_on_a_cpu_and_before_a_compilation_it_says_what_is_coming(monkeypatch, capsys):
    import train

    monkeypatch.setattr(train, "train", lambda trainer, processes, options: None)
    train.main(["--device", "cpu", "--layers", "1", "--width", "8", "--heads", "1", "--context", "8"])
    assert "1 layers of 8 on a CPU: a step can take minutes; --tiny takes seconds" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, dynamic: None)
    train.main(["--device", "cpu", "--tiny", "--layers", "1", "--steps", "1", "--compile"])
    assert capsys.readouterr().err == "The first step compiles the model, which can take a minute\n"


def trained_by_ddp(tmp_path):
    import train

    train.main(["--tiny", "--device", "cpu", "--layers", "1", "--context", "8", "--way", "ddp", "--steps", "2"])


def timed_by_ddp(tmp_path):
    import scaling

    scaling.main(["--device", "cpu", "--ways", "ddp", "--steps", "1", "--output", str(tmp_path / "scaling.json")])


def in_a_cycle(tmp_path):
    from processes import joined, shared_out

    def within(processes):
        shared = shared_out(torch.nn.Linear(1, 1), "ddp", processes, None)
        shared.itself = [shared]

    with joined("cpu") as processes:
        within(processes)


@pytest.mark.parametrize("program", [trained_by_ddp, timed_by_ddp, in_a_cycle])
def test_what_shares_a_model_out_is_gone_before_the_group_of_processes_ends(monkeypatch, tmp_path, program):
    def alive():
        return sum(type(each) is torch.nn.parallel.DistributedDataParallel for each in gc.get_objects())

    end, found = torch.distributed.destroy_process_group, []
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: (found.append(alive()), end()))
    gc.disable()
    try:
        program(tmp_path)
    finally:
        gc.enable()
    assert found == [0]


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
    words = r"(?s)with Linear.*32 sequences do not fit on 2 of these GPUs; about 8 do: --sequences 8\."
    with pytest.raises(SystemExit, match=words):
        train.main(["--device", "cpu", "--layers", "3", "--sequences", "32"])


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
