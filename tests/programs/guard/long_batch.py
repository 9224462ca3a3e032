"""Trains with batches of which every third is long, and with 3.2 GiB fits only when the blocks are
checkpointed.

long_batch.py SOURCE_OF_ULLAGE STEPS WAY ...      one way after another

WAY is words with "+": "plain"; "guarded". "+accumulated": a short micro-batch comes before each
batch, and its gradients are there. The last line is a document: for each way what the allocator had
after each step, and what the guard did.
"""

import contextlib
import functools
import gc
import io
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, sys.argv[1])
import ullage

WIDTH, LAYERS, SHORT, LONG = 512, 6, 256, 2048


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        """x and the result are (batch, tokens, WIDTH)."""
        q, k, v = (
            part.unflatten(-1, (8, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.out(y.transpose(1, 2).flatten(2)), 0.1)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A stack of blocks."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 64)

    def forward(self, x):
        """x is (batch, tokens, WIDTH), the result a mean."""
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()


def train(ways, steps):
    """The document of a training."""
    gc.collect()  # the model of the way before
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    model = Model().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(length, *, is_last=True):
        loss = model(torch.randn(8, length, WIDTH, device="cuda"))
        loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    said = io.StringIO()
    guard = ullage.guard(model, optimizer, calm_steps=1) if "guarded" in ways else None
    rows = []
    with contextlib.redirect_stderr(said), guard or contextlib.nullcontext():
        for number in range(steps):
            run = functools.partial(guard.step, step) if "guarded" in ways else step
            if "accumulated" in ways:
                run(SHORT, is_last=False)
            torch.cuda.synchronize()
            began = time.perf_counter()
            run(LONG if number % 3 == 2 else SHORT)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - began
            rows.append(
                {
                    "allocated": torch.cuda.memory_allocated(),
                    "reserved": torch.cuda.memory_reserved(),
                    "tensors": torch.cuda.memory_stats()["active.all.current"],
                    "seconds": seconds,
                }
            )
    torch.cuda.empty_cache()
    return {
        "rows": rows,
        "recoveries": guard.num_recoveries if guard else 0,
        "at_end": [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()],
        "peak": torch.cuda.max_memory_allocated(),
        "said": said.getvalue().splitlines(),
        "generator": torch.cuda.get_rng_state().tolist(),
    }


def main():
    """Trains in each way, and prints."""
    steps, ways = int(sys.argv[2]), sys.argv[3:]
    train(["plain"], 1)  # makes workspaces, which stay
    print(json.dumps({way: train(way.split("+"), steps) for way in ways}))


if __name__ == "__main__":
    main()
