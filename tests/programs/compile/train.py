"""Trains a small transformer, compiled in one of many ways: train.py WAY.

Its last line is JSON: torch's own account of memory, and what the compiler did. WAY is eager,
module, blocks, call, method, function, optimizer, breaks, dynamic, or graphs (reduce-overhead).
"""

import json
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, length, 3, 4, width // 4)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    def __init__(self, *, has_breaks: bool) -> None:
        super().__init__()
        self.has_breaks = has_breaks
        self.tokens = nn.Embedding(1000, 128)
        self.blocks = nn.ModuleList(Block(128) for _ in range(3))
        self.head = nn.Linear(128, 1000)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores of (batch, tokens, 1000). ids is (batch, tokens)."""
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
            if self.has_breaks:
                torch._dynamo.graph_break()
        return self.head(x)


def main(way: str) -> None:
    """Six steps; those of "dynamic" differ in length."""
    torch.manual_seed(0)
    model = Model(has_breaks=way == "breaks").cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    forward, step = model, optimizer.step
    if way in ("module", "breaks", "dynamic", "graphs"):
        forward = torch.compile(model, mode="reduce-overhead" if way == "graphs" else None)
    elif way == "method":
        model.compile()
    elif way == "call":
        forward = torch.compile(model.__call__)
    elif way == "blocks":
        for block in model.blocks:
            block.compile()
    elif way == "optimizer":
        step = torch.compile(optimizer.step)

    def loss_of(ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(forward(ids).flatten(0, 1), ids.flatten())

    if way == "function":
        loss_of = torch.compile(loss_of)
    peaks = []
    for index in range(6):
        length = 64 + 16 * index if way == "dynamic" else 64
        ids = torch.randint(0, 1000, (8, length), device="cuda")
        loss_of(ids).backward()
        step()
        optimizer.zero_grad()
        peaks.append(torch.cuda.max_memory_allocated())
    stats = torch.cuda.memory_stats()
    kinds = ("requested", "allocated", "reserved")
    found = {f"peak_{kind}_bytes": stats[f"{kind}_bytes.all.peak"] for kind in kinds}
    found["num_allocs"] = stats["allocation.all.allocated"]
    found["num_segments"] = stats["segment.all.allocated"]
    found |= {"frames": dict(counters["frames"]), "stats": dict(counters["stats"]), "peaks": peaks}
    print(json.dumps(found | {"breaks": sum(counters["graph_break"].values())}))


if __name__ == "__main__":
    main(sys.argv[1])
