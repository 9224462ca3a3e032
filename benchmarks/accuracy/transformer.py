"""The transformers that the workloads define themselves: GPT, ViT, DiT, mixture of experts."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Cache(Protocol):
    """The keys and values of one layer, of all tokens so far."""

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add those of new tokens; all of them so far. Each is (B, heads, T, C)."""


class GrowingCache:
    """A copy one token longer at every step."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As Cache says."""
        self.k = k if self.k is None else torch.cat([self.k, k], 2)
        self.v = v if self.v is None else torch.cat([self.v, v], 2)
        return self.k, self.v


class StaticCache:
    """Room for `max_tokens`, taken at once."""

    def __init__(self, batch: int, heads: int, max_tokens: int, dim: int) -> None:
        self.k = torch.zeros(batch, heads, max_tokens, dim, device="cuda")
        self.v = torch.zeros_like(self.k)
        self.num_tokens = 0

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As Cache says."""
        start, self.num_tokens = self.num_tokens, self.num_tokens + k.shape[2]
        self.k[:, :, start : self.num_tokens] = k
        self.v[:, :, start : self.num_tokens] = v
        return self.k[:, :, : self.num_tokens], self.v[:, :, : self.num_tokens]


class Block(nn.Module):
    """A transformer layer with dropout."""

    def __init__(self, dim: int, heads: int, *, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.drop = nn.Dropout(0.1)

    def attend(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """Attention of x (B, T, C) to itself and to what the cache holds."""
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.heads, C // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = cache.extend(k, v)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal and T > 1)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))

    def feed(self, x: Tensor) -> Tensor:
        """The feed-forward half without its norm."""
        return self.down(F.gelu(self.up(x)))

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """x and the result are (B, T, C)."""
        x = x + self.drop(self.attend(self.norm1(x), cache))
        return x + self.drop(self.feed(self.norm2(x)))


class ExpertsBlock(Block):
    """A layer with eight experts: two a token, as many tokens an expert as it has room for."""

    def __init__(self, dim: int, heads: int, *, experts: int = 8) -> None:
        super().__init__(dim, heads)
        del self.up, self.down
        self.experts = experts
        self.router = nn.Linear(dim, experts, bias=False)
        self.w_up = nn.Parameter(torch.randn(experts, dim, 4 * dim) * 0.02)
        self.w_down = nn.Parameter(torch.randn(experts, 4 * dim, dim) * 0.02)

    def feed(self, x: Tensor) -> Tensor:
        """Tokens beyond an expert's room share one row that no expert reads."""
        tokens = x.flatten(0, 1)  # (N, C)
        weights, chosen = self.router(tokens).float().softmax(-1).topk(2)
        chosen = chosen.flatten()
        room = len(chosen) * 5 // (4 * self.experts)
        rank = F.one_hot(chosen, self.experts).cumsum(0).gather(1, chosen[:, None])[:, 0] - 1
        row = torch.where(rank < room, chosen * room + rank, self.experts * room)
        inputs = tokens.repeat_interleave(2, 0)
        buffer = inputs.new_zeros(self.experts * room + 1, inputs.shape[1])
        buffer = buffer.index_copy(0, row, inputs)
        hidden = F.gelu(buffer[:-1].view(self.experts, room, -1) @ self.w_up)
        outputs = F.pad((hidden @ self.w_down).flatten(0, 1), (0, 0, 0, 1))
        mixed = outputs[row].view(-1, 2, inputs.shape[1]) * weights[..., None]
        return mixed.sum(1).view_as(x).to(x.dtype)


class GPT(nn.Module):
    """GPT-2 with an output layer of its own (not tied)."""

    def __init__(
        self,
        *,
        layers: int = 12,
        dim: int = 768,
        heads: int = 12,
        max_tokens: int = 1024,
        checkpoint: bool = False,
        block: type[Block] = Block,
    ) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.tok, self.pos = nn.Embedding(50304, dim), nn.Embedding(max_tokens, dim)
        self.blocks = nn.ModuleList(block(dim, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 50304, bias=False)

    def scores(self, ids: Tensor, start: int = 0, caches: list[Cache] | None = None) -> Tensor:
        """(batch, tokens, words) of ids (batch, tokens), the first of which is token `start`."""
        x = self.tok(ids) + self.pos(torch.arange(start, start + ids.shape[1], device=ids.device))
        for index, block in enumerate(self.blocks):
            if self.checkpoint:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x, caches[index] if caches else None)
        return self.head(self.norm(x))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy. ids and labels are (batch, tokens)."""
        logits = self.scores(ids)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class ViT(nn.Module):
    """ViT-S/16 with the mean of all patches as the image's vector."""

    def __init__(self, layers: int = 12, dim: int = 384, heads: int = 6) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 16, 16)
        self.pos = nn.Parameter(torch.zeros(1, 196, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads, causal=False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (batch, 1000) of images (batch, 3, 224, 224)."""
        x = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        return self.head(self.norm(self.blocks(x)).mean(1))


class DiTBlock(Block):
    """A layer that the time step shifts, scales and gates (adaLN)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads, causal=False)
        self.modulate = nn.Linear(dim, 6 * dim)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:  # type: ignore[override]
        """x (B, T, C), cond (B, C)."""
        a, b, c, d, e, f = self.modulate(F.silu(cond))[:, None].chunk(6, -1)
        x = x + c * self.attend(self.norm1(x) * (1 + a) + b)
        return x + f * self.feed(self.norm2(x) * (1 + d) + e)


class DiT(nn.Module):
    """A diffusion transformer on latents of 4 x 32 x 32 in patches of two."""

    def __init__(self, layers: int = 12, dim: int = 384, heads: int = 6) -> None:
        super().__init__()
        self.patch = nn.Conv2d(4, dim, 2, 2)
        self.time = nn.Embedding(1000, dim)
        self.blocks = nn.ModuleList(DiTBlock(dim, heads) for _ in range(layers))
        self.out = nn.Linear(dim, 16)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """The noise in x (batch, 4, 32, 32) at time (batch,)."""
        cond, y = self.time(time), self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            y = block(y, cond)
        return F.pixel_shuffle(self.out(y).transpose(1, 2).unflatten(2, (16, 16)), 2)
