"""A loader of batches of text: which process takes which part of which batch follows from the step's number alone.

So a run that is interrupted goes on with the batch that it would have had, and any number of processes sees the same whole
batches.
"""

from __future__ import annotations

import sums
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

CHARACTERS = 1 << 20  # of text; more than a short run reads


class Windows(Dataset):
    """Batch number `step` of a text, as pairs (tokens, targets) of int64, each (its part of the sequences, context).

    tokens: the text, (characters,) int64. sequences: of the whole batch, a multiple of `parts`. part: which of `parts` equal
    parts of it this process takes.
    """

    def __init__(self, tokens: Tensor, sequences: int, context: int, seed: int = 0, part: int = 0, parts: int = 1):
        if sequences % parts:
            raise ValueError(f"sequences is {sequences}, which {parts} processes cannot share evenly; take a multiple of "
                             f"{parts}")
        if context >= len(tokens):
            raise ValueError(f"context is {context}, and the text has {len(tokens)} characters; it takes at least one more")
        self.tokens, self.sequences, self.context, self.seed = tokens, sequences, context, seed
        self.mine = slice(part * sequences // parts, (part + 1) * sequences // parts)

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed((self.seed << 32) + step)
        starts = torch.randint(len(self.tokens) - self.context, (self.sequences, 1), generator=generator)[self.mine]
        drawn = self.tokens[starts + torch.arange(self.context + 1)]
        return drawn[:, :-1], drawn[:, 1:]


def text_tokens(seed: int = 0) -> Tensor:
    """The text of sums.py as places in its alphabet, (CHARACTERS,) int64."""
    return torch.tensor([sums.ALPHABET.index(character) for character in sums.text(CHARACTERS, seed)])


def loader(windows: Windows, steps: range, device: torch.device) -> DataLoader:
    """The batches of these steps, in order; for a GPU in memory that it can copy from while the CPU goes on.

    No process of its own prepares them: to cut a batch out of a text takes far less than a step.
    """
    return DataLoader(windows, sampler=steps, batch_size=None, pin_memory=device.type == "cuda")
