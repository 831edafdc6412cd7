"""The Transformer of labs/: its shapes, what it may look at, how it starts, and that it learns with any activation."""

import copy
import io
import math

import pytest
import torch
import torch.nn.functional as F

import labkit
from labkit import REPOSITORY, machine
from labkit.operator import python_part

WORDS, CONTEXT, WIDTH = 61, 24, 32
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def transformer():
    """The module labs/transformer.py, as a lab imports it: with labs/ as its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY / "labs"))
        import transformer

        yield transformer


@pytest.fixture(scope="module")
def rivals():
    return python_part("gelu", "rivals")


@pytest.fixture
def model(transformer):
    torch.manual_seed(0)
    return transformer.Transformer(2, WIDTH, 4, WORDS, CONTEXT, F.gelu)


@pytest.fixture
def batch(transformer):
    return transformer.synthetic_batch(3, CONTEXT, WORDS, "cpu", seed=1)


def test_a_score_for_every_word_at_every_place(model, batch):
    assert model(batch[0]).shape == (3, CONTEXT, WORDS)
    assert model(batch[0][:, :5]).shape == (3, 5, WORDS)  # shorter than the context
    assert model.loss(*batch).shape == ()


def test_a_score_depends_on_no_later_token_and_on_every_earlier_one(model, batch):
    tokens, changed = batch[0], batch[0].clone()
    changed[:, 10] = (changed[:, 10] + 1) % WORDS
    apart = (model(tokens) - model(changed)).abs().amax(-1)
    assert (apart[:, :10] == 0).all() and (apart[:, 10:] > 0).all()


def test_the_same_word_counts_differently_at_another_place(model):
    tokens = torch.full((1, CONTEXT), 7)
    scores = model(tokens)[0]
    assert not torch.allclose(scores[0], scores[1], atol=1e-4)


def test_it_starts_out_knowing_nothing(transformer):
    torch.manual_seed(0)
    model = transformer.Transformer(2, WIDTH, 4, 997, CONTEXT, F.gelu)
    assert model.loss(*transformer.synthetic_batch(8, CONTEXT, 997, "cpu")).item() == pytest.approx(math.log(997), rel=0.01)


def test_it_starts_as_gpt2_does(transformer):
    torch.manual_seed(0)
    model = transformer.Transformer(8, 128, 2, 512, CONTEXT, F.gelu)
    for block in model.blocks:
        assert block.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert block.widen.weight.std().item() == pytest.approx(0.02, rel=0.05)
        for adds in (block.merge, block.narrow):
            assert adds.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
            assert (adds.bias == 0).all()
    assert model.token.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_head_and_embedding_are_one_parameter(model, transformer):
    blocks = 12 * WIDTH**2 + 13 * WIDTH  # four matrices with biases, and two LayerNorms
    assert sum(p.numel() for p in model.parameters()) == 2 * blocks + 2 * WIDTH + (WORDS + CONTEXT) * WIDTH


@pytest.mark.parametrize("heads, length, match", [(5, CONTEXT, "width is 32, which 5 heads"),
                                                  (4, CONTEXT + 1, "sequences of 25")])
def test_sizes_that_do_not_fit_are_refused(transformer, heads, length, match):
    with pytest.raises(ValueError, match=match):
        transformer.Transformer(1, WIDTH, heads, WORDS, CONTEXT, F.gelu)(torch.zeros(1, length, dtype=torch.int64))


def test_a_target_is_the_token_after(transformer):
    tokens, targets = transformer.synthetic_batch(4, CONTEXT, WORDS, "cpu", seed=5)
    assert torch.equal(tokens[:, 1:], targets[:, :-1]) and tokens.shape == targets.shape == (4, CONTEXT)
    assert int(tokens.max()) < WORDS and tokens.is_contiguous() and targets.is_contiguous()
    again, other = (transformer.synthetic_batch(4, CONTEXT, WORDS, "cpu", seed=seed)[0] for seed in (5, 6))
    assert torch.equal(tokens, again) and not torch.equal(tokens, other)


@pytest.mark.parametrize("name", ["composed_pow", "sigmoid_form", "native", "ours"])
def test_every_form_of_gelu_gives_the_same_gradients(model, batch, rivals, name):
    def gradients(activation, model):
        model.activation = activation
        model.loss(*(tensor.to(machine.device()) for tensor in batch)).backward()
        return [parameter.grad.double() for parameter in model.parameters()]

    model.to(machine.device())
    exact = gradients(rivals.composed, copy.deepcopy(model).double())
    activation = labkit.load("gelu") if name == "ours" else getattr(rivals, name)
    for got, right in zip(gradients(activation, model), exact, strict=True):
        torch.testing.assert_close(got, right, rtol=0, atol=2**-17 * right.abs().max().item())


def test_the_activation_is_the_callers_and_can_be_changed(model, batch):
    seen = []

    def watching(x):
        seen.append(tuple(x.shape))
        return F.gelu(x)

    model.activation = watching
    model.loss(*batch)
    assert seen == [(3, CONTEXT, 4 * WIDTH)] * 2
    other = copy.deepcopy(model)
    model.activation = torch.zeros_like  # the perceptrons then add nothing
    for block in other.blocks:
        torch.nn.init.zeros_(block.narrow.weight)
    assert torch.equal(model(batch[0]), other(batch[0]))


def test_copies_are_whole_and_their_own(model, batch, transformer):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    expected = model.loss(*batch)
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert torch.equal(other.loss(*batch), expected)
        with torch.no_grad():
            other.token.weight.zero_()
        assert torch.equal(model.loss(*batch), expected)


def test_a_model_that_holds_an_operator_can_be_copied(model):
    model.activation = labkit.load("gelu")
    assert copy.deepcopy(model).activation is model.activation


def test_a_step_lowers_the_loss_and_leaves_no_gradient_to_the_next(model, batch, transformer):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = [transformer.train_step(model, optimizer, *batch) for _ in range(5)]
    assert all(later < earlier for earlier, later in zip(losses, losses[1:]))
    assert not losses[0].requires_grad
    alone, twice = copy.deepcopy(model), model
    for stale, one in ((0.0, alone), (100.0, twice)):
        for parameter in one.parameters():
            parameter.grad = torch.full_like(parameter, stale)
        transformer.train_step(one, torch.optim.SGD(one.parameters(), lr=1e-3), *batch)
    assert all(torch.equal(a, b) for a, b in zip(alone.parameters(), twice.parameters()))


def test_a_step_computes_in_16_bits_and_keeps_its_weights_in_32(model, batch, transformer):
    seen = []
    model.activation = lambda x: (seen.append(x.dtype), F.gelu(x))[1]
    transformer.train_step(model, torch.optim.SGD(model.parameters()), *batch)
    assert set(seen) == {torch.bfloat16} and {p.dtype for p in model.parameters()} == {torch.float32}


def test_float16_without_a_scaled_loss_is_refused(model, batch, transformer):
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(ValueError, match="pass scaler"):
        transformer.train_step(model, optimizer, *batch, dtype=torch.float16)
    scaler, before = torch.amp.GradScaler("cpu", init_scale=1024.0), model.token.weight.clone()
    transformer.train_step(model, optimizer, *batch, dtype=torch.float16, scaler=scaler)
    assert not torch.equal(model.token.weight, before)


@pytest.mark.parametrize("capability, dtype", [((7, 5), torch.float16), ((8, 0), torch.bfloat16), ((9, 0), torch.bfloat16)])
def test_gpus_before_ampere_compute_in_float16(transformer, monkeypatch, capability, dtype):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert transformer.mixed_dtype(torch.device("cuda")) == dtype
    assert transformer.mixed_dtype(CPU) == torch.bfloat16


def test_a_trainer_starts_the_same_each_time_and_swaps_activations(transformer, rivals):
    small = dict(layers=1, width=64, sequences=2, device=CPU, vocabulary=WORDS, context=CONTEXT, learning_rate=1e-2)
    first, second = transformer.trainer(**small), transformer.trainer(**small)
    losses = [first(rivals.composed).item() for _ in range(4)]
    assert losses == [second(rivals.composed).item() for _ in range(4)] and losses[-1] < losses[0]
    assert first(F.relu).item() != second(rivals.composed).item()


def test_fewer_sequences_fit_into_less_memory(transformer, monkeypatch):
    assert transformer.sequences_that_fit(50, 1024) == 16  # no GPU, no limit
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def on(gib, layers=24):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (gib * 2**30, gib * 2**30))
        return transformer.sequences_that_fit(layers, 1024)

    assert on(138) == on(138, layers=50) == 16
    assert on(79) >= on(40) >= on(15) >= 1 and on(15) <= 2
    assert on(1) == 1


def test_the_memory_that_a_block_keeps_is_what_the_estimate_takes_it_for(transformer, rivals):
    """Composed GeLU keeps the most; on a GPU, autocast computes pow in float32, as is done here by hand."""
    def wide_pow(x):
        return 0.5 * x * (1.0 + torch.tanh(rivals.ROOT_2_OVER_PI * (x + 0.044715 * torch.pow(x.float(), 3.0))))

    def kept(layers, activation):
        model, storages = transformer.Transformer(layers, 64, 1, 64, 128, activation), {}
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

        def pack(tensor):
            if tensor.untyped_storage().data_ptr() not in weights:
                storages[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
            model.loss(*transformer.synthetic_batch(4, 128, 64, "cpu"))
        return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())

    for activation in (rivals.composed, wide_pow):
        a_layer = kept(3, activation) - kept(2, activation) - 2 * 12 * 64**2  # less the weights' copies in 16 bits
        assert 0.75 * transformer.BYTES_A_CHANNEL < a_layer / (4 * 128 * 64) < transformer.BYTES_A_CHANNEL


def test_a_step_after_one_that_ran_out_of_memory_in_the_optimizer_works(transformer, monkeypatch):
    step = transformer.trainer(2, 64, 2, torch.device("cpu"), heads=4, vocabulary=64, context=16)
    made, like = [], torch.zeros_like

    def short(*arguments, **options):
        made.append(1)
        if len(made) == 2:  # the first moment is there, the second is not
            raise torch.OutOfMemoryError("no memory")
        return like(*arguments, **options)

    monkeypatch.setattr(torch, "zeros_like", short)
    with pytest.raises(torch.OutOfMemoryError):
        step(F.gelu)
    monkeypatch.undo()
    assert step(F.gelu).isfinite()
