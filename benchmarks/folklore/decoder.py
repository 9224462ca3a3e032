"""A decoder of the shapes that people talk about, without bias and dropout."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Shape(NamedTuple):
    """What a config.json would say."""

    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int
    is_gated: bool
    """A Llama; the others are GPTs, whose head has the weights of the embedding."""


SHAPES = {
    "gpt2": Shape(12, 768, 3072, 12, 12, 50257, is_gated=False),
    "1b": Shape(22, 2048, 5632, 32, 4, 32000, is_gated=True),  # TinyLlama
    "7b": Shape(32, 4096, 11008, 32, 32, 32000, is_gated=True),  # Llama 2
    "70b": Shape(80, 8192, 28672, 64, 8, 128256, is_gated=True),  # Llama 3
    "gpt3": Shape(96, 12288, 49152, 96, 96, 50257, is_gated=False),
}


class Block(nn.Module):
    """Attention and a feed-forward part, each behind a norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width = shape.width // shape.heads
        key_width = shape.kv_heads * self.head_width
        self.attention_norm, self.norm = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key = nn.Linear(shape.width, key_width, bias=False)
        self.value = nn.Linear(shape.width, key_width, bias=False)
        self.output = nn.Linear(shape.width, shape.width, bias=False)
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False) if shape.is_gated else None
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, width)
        normed = self.attention_norm(x)
        query, key, value = (
            made.unflatten(-1, (-1, self.head_width)).transpose(1, 2)  # (B, H, T, D)
            for made in (self.query(normed), self.key(normed), self.value(normed))
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        normed = self.norm(x)
        up = self.up(normed)
        return x + self.down(F.gelu(up) if self.gate is None else F.silu(self.gate(normed)) * up)


class Decoder(nn.Module):
    """Embedding, blocks in checkpointed segments (0: none), head."""

    def __init__(self, shape: Shape, segments: int = 0) -> None:
        super().__init__()
        self.segments = segments
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:  # (B, T) -> (B, T, vocabulary)
        x = self.embedding(tokens)
        if not self.segments:
            x = nn.Sequential(*self.layers)(x)
        for i in range(self.segments):
            start, end = (len(self.layers) * place // self.segments for place in (i, i + 1))
            x = checkpoint(nn.Sequential(*self.layers[start:end]), x, use_reentrant=False)
        return self.head(self.norm(x))


def build(name: str, dtype: torch.dtype, segments: int = 0) -> Decoder:
    """On the GPU, without weights on the CPU."""
    with torch.device("meta"):
        model = Decoder(SHAPES[name], segments).to(dtype)
    model = model.to_empty(device="cuda")  # which would untie what is tied before
    if not SHAPES[name].is_gated:
        model.head.weight = model.embedding.weight
    return model
