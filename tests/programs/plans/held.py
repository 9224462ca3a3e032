"""Trains a small chain for three steps, and does what a copy of a process may get wrong: held.py
MODE.

plain: draws the size of a tensor with `random`. directory: makes a temporary directory before it
first calls its model, and uses it after. thread, file: has a thread, or a file open, by then.
workers: its data come from worker processes, which are there by then.
"""

import random
import sys
import tempfile
import threading
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, DEPTH, STEPS = 1024, 4, 3


class Block(nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


def main():
    """Trains."""
    mode = sys.argv[1]
    directory = tempfile.TemporaryDirectory() if mode == "directory" else None
    if mode == "thread":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    file = Path(__file__).open() if mode == "file" else None  # noqa: SIM115 - stays open
    data = TensorDataset(torch.arange(64))
    workers = iter(DataLoader(data, batch_size=2, num_workers=2 * (mode == "workers")))
    model = nn.Sequential(*[Block() for _ in range(DEPTH)]).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(STEPS):
        next(workers)
        x = torch.randn(8192, WIDTH, device="cuda")
        drawn = torch.empty(random.randrange(1, 64) * 2**20, dtype=torch.uint8, device="cuda")
        model(x).sum().backward()
        if directory is not None:
            Path(directory.name, str(step)).touch()
        optimizer.step()
        optimizer.zero_grad()
        del drawn
    del file


if __name__ == "__main__":
    random.seed(5)
    main()
