"""Trains with batches of which every third is long, and fits only when the blocks are checkpointed.

long_batch.py SOURCE_OF_ULLAGE guarded|calls|plain STEPS [accumulated]

"accumulated": a short micro-batch comes before each batch, and its gradients are there.
"calls": the loop is as without a guard, and the calls of the model are guarded.
The last line is a document: what the allocator had after each step, and what the guard did.
"""

import contextlib
import functools
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


def main():
    """Trains, and prints."""
    how, steps = sys.argv[2], int(sys.argv[3])
    is_accumulated = sys.argv[4:] == ["accumulated"]
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
    kinds = {"guarded": ullage.guard, "calls": ullage.guard_model}
    guard = kinds[how](model, optimizer, calm_steps=1) if how in kinds else None
    rows = []
    with contextlib.redirect_stderr(said), guard or contextlib.nullcontext():
        for number in range(steps):
            length = LONG if number % 3 == 2 else SHORT
            run = functools.partial(guard.step, step) if how == "guarded" else step
            if is_accumulated:
                run(SHORT, is_last=False)
            torch.cuda.synchronize()
            began = time.perf_counter()
            loss = run(length)
            del loss
            torch.cuda.synchronize()
            seconds = time.perf_counter() - began
            stats = torch.cuda.memory_stats()
            rows.append(
                {
                    "allocated": torch.cuda.memory_allocated(),
                    "reserved": torch.cuda.memory_reserved(),
                    "tensors": stats["active.all.current"],
                    "rung": guard.rung if guard else 0,
                    "seconds": seconds,
                }
            )
    torch.cuda.empty_cache()
    document = {
        "rows": rows,
        "recoveries": guard.num_recoveries if guard else 0,
        "at_end": [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()],
        "peak": torch.cuda.max_memory_allocated(),
        "said": said.getvalue().splitlines(),
        "generator": torch.cuda.get_rng_state().tolist(),
    }
    print(json.dumps(document), file=sys.stderr)


if __name__ == "__main__":
    main()
