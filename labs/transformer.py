"""A GPT-style Transformer in plain PyTorch, whose activation is the caller's, and one training step of it.

Letters in the comments: B sequences of T tokens, C channels (the width), H heads of D = C / H channels, V words.
"""

from __future__ import annotations

import math
from typing import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BYTES_A_CHANNEL = 96  # what a block keeps a token and channel for its backward pass, composed GeLU in float32 the most


class Block(nn.Module):
    """Attention, then a two-layer perceptron; each adds to the stream x, and reads it through a LayerNorm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.narrow(activation(self.widen(self.norm_mlp(x))))

    def attention(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)  # each (B, H, T, D)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.merge(y.transpose(1, 2).flatten(2))  # (B, T, C)


class Transformer(nn.Module):
    """Predicts the next token from those before it; GPT-2's layout, with its head tied to the token embedding.

    width: channels, a multiple of heads. context: the most tokens of a sequence. activation: a function of one tensor,
    which every block calls on its 4 * width channels. It is looked up at each call, so `model.activation = another`
    changes it without touching a weight.
    """

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, context: int,
                 activation: Callable[[Tensor], Tensor]):
        super().__init__()
        if width % heads:
            raise ValueError(f"width is {width}, which {heads} heads cannot share evenly; take a multiple of heads")
        self.activation = activation
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.initialise()

    def initialise(self) -> None:
        """GPT-2's start: weights N(0, 0.02), biases 0, and what adds to the stream smaller, since 2 * layers of them add up."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        for block in self.blocks:
            for adds in (block.merge, block.narrow):
                nn.init.normal_(adds.weight, std=0.02 / math.sqrt(2 * len(self.blocks)))

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, T) int64. Returns the scores of the next token, (B, T, V)."""
        length, context = tokens.shape[1], self.position.num_embeddings
        if length > context:
            raise ValueError(f"tokens has sequences of {length}, but this model's context is {context}")
        x = self.token(tokens) + self.position.weight[:length]
        for block in self.blocks:
            x = block(x, self.activation)
        return F.linear(self.norm(x), self.token.weight)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy, in nats, of the scores for `tokens` against `targets`, both (B, T) int64."""
        return F.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())


def synthetic_batch(sequences: int, context: int, vocabulary: int, device: torch.device | str, seed: int = 0):
    """(tokens, targets): random tokens, the same for the same seed, and for each the one after it; (B, T) int64 both."""
    drawn = torch.randint(vocabulary, (sequences, context + 1), generator=torch.Generator().manual_seed(seed)).to(device)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def mixed_dtype(device: torch.device) -> torch.dtype:
    """The 16-bit type to train in: bfloat16 on a CPU and on GPUs that compute in it, float16 on GPUs before Ampere."""
    old = device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0)
    return torch.float16 if old else torch.bfloat16


def train_step(model: Transformer, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor,
               dtype: torch.dtype | None = None, scaler: torch.amp.GradScaler | None = None) -> Tensor:
    """One step of mixed-precision training; returns the loss before it, a 0-d tensor, without waiting for the GPU.

    dtype: what autocast computes in, bfloat16 or float16; by default `mixed_dtype`. scaler: scales the loss; float16
    needs one, since without it most gradients are too small for the type.
    """
    dtype = dtype or mixed_dtype(tokens.device)
    scaler = scaler or torch.amp.GradScaler(tokens.device.type, enabled=False)
    if dtype == torch.float16 and not scaler.is_enabled():
        raise ValueError("train_step: float16 loses small gradients; pass scaler=torch.amp.GradScaler(device), or use bfloat16")
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(tokens.device.type, dtype):
        loss = model.loss(tokens, targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def trainer(layers: int, width: int, sequences: int, device: torch.device, heads: int | None = None,
            vocabulary: int = 50304, context: int = 1024, learning_rate: float = 3e-4) -> Callable[[Callable], Tensor]:
    """A new model, AdamW and one synthetic batch, as step(activation): a training step with it, which returns the loss.

    Every activation meets the same weights and the same optimizer, so only one model lies in memory. The same arguments
    give the same start. sequences: of `context` tokens each, in the batch. heads: width / 64 by default. vocabulary:
    GPT-2's by default, rounded up to a multiple of 64.
    """
    torch.manual_seed(0)
    with device:
        model = Transformer(layers, width, heads or width // 64, vocabulary, context, activation=F.gelu)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=device.type == "cuda")
    scaler = torch.amp.GradScaler(device.type, enabled=mixed_dtype(device) == torch.float16)
    tokens, targets = synthetic_batch(sequences, context, vocabulary, device)

    def step(activation: Callable[[Tensor], Tensor]) -> Tensor:
        model.activation = activation
        try:
            return train_step(model, optimizer, tokens, targets, scaler=scaler)
        except torch.OutOfMemoryError:
            optimizer.state.clear()  # the moments may be half made, and the next step would stumble over them
            raise

    return step


def sequences_that_fit(layers: int, width: int, vocabulary: int = 50304, context: int = 1024, most: int = 16) -> int:
    """How many sequences of `context` tokens a training step with composed GeLU can take on the current GPU: a power of 2.

    At least 1, at most `most`; `most` too where there is no GPU. It is an estimate, on the safe side.
    """
    if not torch.cuda.is_available():
        return most
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # PyTorch holds it, for whoever asks next
    free = 0.9 * (torch.cuda.mem_get_info()[0] + cached)
    # Weights, gradients and AdamW's two moments in float32, and the copy of the weights in 16 bits that autocast keeps.
    model = 18 * (12 * layers * width**2 + vocabulary * width)
    token = BYTES_A_CHANNEL * layers * width + 16 * vocabulary  # what the blocks keep, and the scores in two types
    while most > 1 and model + most * context * token > free:
        most //= 2
    return most
