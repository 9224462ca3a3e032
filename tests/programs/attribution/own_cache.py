"""Generation by a decoder written by hand, whose cache is a list of tensors of the program."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from transformer import Mlp
from truth import Truth

Pair = tuple[torch.Tensor, torch.Tensor]


class Attention(nn.Module):
    """Self-attention over what was and what is new."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, past: Pair | None) -> tuple[torch.Tensor, Pair]:
        """x is (batch, length, width); keys and values are (batch, heads, length, head_width)."""
        split = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        q, k, v = split.permute(2, 0, 3, 1, 4)
        if past is None:
            k, v = k.contiguous(), v.contiguous()
        else:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self.out(y.transpose(1, 2).flatten(2)), (k, v)


class Block(nn.Module):
    """Attention and MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, 8), Mlp(width)

    def forward(self, x: torch.Tensor, past: Pair | None) -> tuple[torch.Tensor, Pair]:
        """x is (batch, length, width)."""
        y, kept = self.attention(self.norm_1(x), past)
        x = x + y
        return x + self.mlp(self.norm_2(x)), kept


class Decoder(nn.Module):
    """Token ids and a cache to the last token's logits and a longer cache."""

    def __init__(self, width: int = 512, vocabulary: int = 4096, num_blocks: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(
        self, ids: torch.Tensor, cache: list[Pair | None]
    ) -> tuple[torch.Tensor, list[Pair | None]]:
        """ids is (batch, length)."""
        x, longer = self.embedding(ids), list[Pair | None]()
        for block, past in zip(self.blocks, cache, strict=True):
            x, kept = block(x, past)
            longer.append(kept)
        return self.head(self.norm(x[:, -1:])), longer


@torch.no_grad()
def main() -> None:
    """Thirty-two prompts, twenty-four tokens."""
    with Truth() as truth:
        model = truth.owner(Decoder().to("cuda", torch.bfloat16))
        ids = truth.input(torch.randint(4096, (32, 512)).cuda())
        cache: list[Pair | None] = [None] * len(model.blocks)
        for _ in range(24):
            logits, cache = model(ids, cache)
            truth.say("kv_cache", cache)
            ids = truth.input(logits.argmax(-1))


if __name__ == "__main__":
    main()
