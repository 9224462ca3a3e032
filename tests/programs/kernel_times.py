"""Trains a small transformer's parts for four steps, and prints the kernels of the third as
`ullage record --kernels` notes them; with "own" it profiles the third with PyTorch's profiler.
"""

from __future__ import annotations

import contextlib
import json
import sys

import torch
from torch import nn

from ullage.players.inside.steps.kernel_times import KernelTimes

BATCH, LENGTH, WIDTH, HEADS = 4, 256, 512, 8


class Block(nn.Module):
    """Attention by PyTorch's own kernels, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm(x)).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.FLASH_ATTENTION):
            mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)
        scores = x @ x.transpose(1, 2)
        return self.down(nn.functional.gelu(self.up(scores @ x)))


model = nn.Sequential(Block(), Block()).cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters())
kernels = KernelTimes(torch)
has_own = sys.argv[1:] == ["own"]
for step in range(1, 5):
    x = torch.randn(BATCH, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16)
    with torch.profiler.profile() if has_own and step == 3 else contextlib.nullcontext():
        model(x).sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    if not has_own:
        kernels.end_step(step)
print(json.dumps({"rows": kernels.rows, "remark": kernels.remark}))
