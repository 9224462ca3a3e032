"""Trains a stack of blocks as a script for one process would: `ranks.py DIRECTORY DEVICE HOW`.

Each process writes what it has in the end to DIRECTORY: its losses, its rows, its state_dicts.
HOW: "moved" moves the model before its optimizer is made, "late" after, "still" does not; "clips"
clips gradients; "keeps" clips those of parameters that it has kept from
before its first step, and does not move the model.
"""

import os
import sys

import torch
from blocks import WIDTH, Stack
from torch.utils.data import DataLoader

ROWS, BATCH, STEPS = 24, 4, 3


def rows():
    """The data: row and target are functions of the row's number."""
    numbers = torch.arange(ROWS * WIDTH, dtype=torch.float32).reshape(ROWS, WIDTH)
    return [(number, numbers[number].sin(), numbers[number].cos()) for number in range(ROWS)]


def model():
    """A stack without random numbers, and with batch statistics nowhere."""
    made = Stack()
    for block in made.blocks:
        block.dropout.p = 0.0
    return made


def main():
    """Trains."""
    directory, device, how = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    made = model()
    if how == "late":
        optimizer = torch.optim.AdamW(made.parameters(), lr=1e-2)
    if how not in {"still", "keeps"}:
        made.to(device)
    kept = list(made.parameters()) if how == "keeps" else []
    if how != "late":
        optimizer = torch.optim.AdamW(made.parameters(), lr=1e-2)
    losses, seen = [], []
    for number, x, target in DataLoader(rows(), BATCH, shuffle=True):
        if len(losses) == STEPS:
            break
        loss = (made(x.to(device)) - target.to(device)).square().mean()
        loss.backward()
        if how in {"clips", "keeps"}:
            torch.nn.utils.clip_grad_norm_(kept or made.parameters(), 1e-2)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        seen.append(number.tolist())
    torch.save(
        {
            "losses": [one.item() for one in losses],
            "rows": seen,
            "model": made.state_dict(),
            "optimizer": optimizer.state_dict(),
            "drawn": torch.rand(1).item(),
        },
        os.path.join(directory, f"rank{os.environ.get('RANK', '0')}.pt"),
    )


if __name__ == "__main__":
    main()
