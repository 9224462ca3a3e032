"""A decoder as it is written by hand: what several of the programs train."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x is (batch, length, width)."""
        batch, length, width = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    """Two layers with a GELU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x is (batch, length, width)."""
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    """Attention and MLP, each after a norm and beside a residual."""

    def __init__(self, width: int, heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = Mlp(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x is (batch, length, width)."""
        x = x + self.dropout(self.attention(self.norm_1(x)))
        return x + self.dropout(self.mlp(self.norm_2(x)))


class Transformer(nn.Module):
    """Token ids to logits; `run_block` says how a block is called."""

    def __init__(
        self, vocabulary: int = 8192, width: int = 256, heads: int = 8, num_blocks: int = 4
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.register_buffer("position", torch.zeros(1, 2048, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Calls one block."""
        return block(x)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids is (batch, length)."""
        x = self.embedding(ids) + self.position[:, : ids.shape[1]]
        for block in self.blocks:
            x = self.run_block(block, x)
        return self.head(self.norm(x))


def loss_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the next token."""
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
