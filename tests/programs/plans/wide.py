"""Trains wide blocks, whose parameters are most of what it takes, as a script for one GPU would.

Prints the most that was allocated while the model was moved there.
"""

import json

import torch
from blocks import Block
from torch import nn

WIDTH, DEPTH, ROWS, STEPS = 2048, 4, 4096, 3


class Wide(nn.Module):
    """Blocks one after another."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(DEPTH))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def main():
    """Trains."""
    model = Wide().to("cuda")
    print(json.dumps({"moved": torch.cuda.max_memory_allocated()}), flush=True)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        x = torch.randn(ROWS, WIDTH, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
