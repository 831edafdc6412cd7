"""Text of sums, such as "7+5=12", in tokens: what a small Transformer learns in the lab on mixed precision."""

from __future__ import annotations

import math
import random
from collections import Counter

import torch
from torch import Tensor

ALPHABET = "0123456789+=\n"


def text(length: int, seed: int = 0) -> str:
    """The first `length` characters of random sums of two digits, a line each; the same for the same seed."""
    drawn, lines, have = random.Random(seed), [], 0
    while have < length:
        a, b = drawn.randrange(10), drawn.randrange(10)
        lines.append(f"{a}+{b}={a + b}\n")
        have += len(lines[-1])
    return "".join(lines)[:length]


def least_losses() -> dict[str, float]:
    """The least mean loss of a prediction, in nats, by what a reader of the text knows: how often each character comes; also
    where it stands in a line, with the number of digits that follow and how often each sum comes; also how to add, so that
    the two digits alone are news.
    """
    lines = [f"{a}+{b}={a + b}\n" for a in range(10) for b in range(10)]
    length = sum(map(len, lines)) / len(lines)
    digits = 2 * math.log(10)
    known_sums = _entropy(Counter(line.partition("=")[2] for line in lines))
    return {"knows the characters": _entropy(Counter("".join(lines))), "knows the layout": (digits + known_sums) / length,
            "can add": digits / length}


def _entropy(counts: Counter) -> float:
    total = counts.total()
    return -sum(n / total * math.log(n / total) for n in counts.values())


def batches(count: int, sequences: int, context: int, device: torch.device | str, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """`count` pairs (tokens, targets), (B, T) int64 both: B sequences of T characters from random places of the text, as
    places in ALPHABET, and for each character the one after it.
    """
    tokens = torch.tensor([ALPHABET.index(character) for character in text(1 << 16, seed)])
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(tokens) - context, (count, sequences, 1), generator=generator)
    drawn = tokens[starts + torch.arange(context + 1)].to(device)  # (count, B, T + 1)
    return [(each[:, :-1], each[:, 1:]) for each in drawn]
