"""A Transformer in training: its settings, its optimizer, and one step of it in mixed precision."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Callable

import torch
import torch.nn.functional as F
from processes import Processes, shared_out
from text_batches import Windows, text_tokens
from torch import Tensor, nn
from transformer import Transformer, mixed_dtype, sequences_that_fit

Activation = Callable[[Tensor], Tensor]
# None: no autocast, all in the type of the weights. 16 bits: weights in float32, products by autocast.
PRECISIONS = {"float64": None, "float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What makes a run what it is: two runs with the same settings begin with the same weights and see the same batches."""

    layers: int = 24
    width: int = 1024
    heads: int = 16
    vocabulary: int = 50304  # GPT-2's, rounded up to a multiple of 64; the text needs far fewer
    context: int = 1024
    sequences: int = 16  # of the whole batch, over all processes
    precision: str = "bfloat16"
    learning_rate: float = 3e-4
    warm_up: int = 20  # steps over which the learning rate rises to that
    clip: float = 1.0  # the largest norm of the whole gradient
    seed: int = 0

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and field.name != "seed" and value <= 0:
                raise ValueError(f"{field.name} is {value}; it must be more than 0")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is {self.precision!r}; there are {', '.join(PRECISIONS)}")


_TINY = Settings(layers=2, width=32, heads=2, vocabulary=64, context=32, sequences=8, learning_rate=2e-3, warm_up=5)


def case_study(device: torch.device) -> Settings:
    """The settings of the case study, in the 16-bit type that the device computes in."""
    return Settings(precision=str(mixed_dtype(device)).removeprefix("torch."))


def tiny(device: torch.device) -> Settings:
    """Settings for a CPU and for tests, in the 16-bit type that the device computes in."""
    return dataclasses.replace(_TINY, precision=case_study(device).precision)


def fitting(device: torch.device) -> Settings:
    """The case study with as many sequences in a batch as this GPU's free memory takes; on a CPU the settings of `tiny`."""
    if device.type != "cuda":
        return tiny(device)
    case = case_study(device)
    return dataclasses.replace(case, sequences=sequences_that_fit(case.layers, case.width, case.vocabulary, case.context,
                                                                  most=case.sequences))


class Trainer:
    """A model, AdamW and, for float16, a GradScaler, on one process or shared out over many.

    way: one of processes.WAYS. Every process must make one with the same settings: the seed gives them the same weights.
    """

    def __init__(self, settings: Settings, processes: Processes, activation: Activation, way: str = "plain"):
        self.settings, self.autocast = settings, PRECISIONS[settings.precision]
        self.device = processes.device
        torch.manual_seed(settings.seed)
        with self.device:
            self.plain = Transformer(settings.layers, settings.width, settings.heads, settings.vocabulary, settings.context,
                                     activation)
        if settings.precision == "float64":
            self.plain.double()
        self.model = shared_out(self.plain, way, processes, self.autocast)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95),
                                           weight_decay=0.1, fused=self.device.type == "cuda")
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.autocast == torch.float16)

    def step(self, number: int, tokens: Tensor, targets: Tensor, model: nn.Module | None = None) -> Tensor:
        """One step; returns the loss of this process's sequences before it, a 0-d tensor, without waiting for the GPU.

        number: from 0. tokens, targets: (B, T) int64 on the device. model: runs instead of `self.model`, with its weights.
        """
        rate = self.settings.learning_rate * min(1.0, (number + 1) / self.settings.warm_up)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, self.autocast) if self.autocast else contextlib.nullcontext():
            scores = (self.model if model is None else model)(tokens)
            loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten())
        del scores  # the backward pass makes a tensor as large
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


def stepper(settings: Settings, device: torch.device, batches: int = 1) -> Callable[..., Tensor]:
    """A new trainer on one device, as step(activation, compiled=False): its next training step; returns the loss.

    Every activation meets the same weights and the same optimizer, so that only one model lies in memory; the same
    arguments give the same start. compiled: the whole model goes through torch.compile, with the activation in it. batches: how
    many different ones there are, taken in turn; they lie on the device.
    """
    trainer = Trainer(settings, Processes(0, 1, device), F.gelu)
    windows = Windows(text_tokens(), settings.sequences, settings.context, settings.seed)
    ready = [tuple(part.to(device) for part in windows[number]) for number in range(batches)]
    whole = torch.compile(trainer.plain, dynamic=False)
    count = 0

    def step(activation: Activation, compiled: bool = False) -> Tensor:
        nonlocal count
        trainer.plain.activation = activation
        try:
            loss = trainer.step(count, *ready[count % batches], model=whole if compiled else None)
        except torch.OutOfMemoryError:
            trainer.optimizer.state.clear()  # the moments may be half made, and the next step would stumble over them
            raise
        count += 1
        return loss

    return step
