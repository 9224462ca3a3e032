"""GPT-2 on batches of varying length: `lengths.py plain`, `longest_first` or `block_first`."""

import random
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples" / "gpt2"))

from train import GPT, make_batch

ROWS, LEAST, MOST, STEPS = 8, 64, 1024, 40
# A little less than what the program is seen to allocate at its peak.
BLOCK_BYTES = 6000 * 2**20


def step(model: GPT, optimizer: torch.optim.Optimizer, length: int, *, updates: bool) -> None:
    """Train on rows of a length."""
    ids, targets = make_batch(ROWS, length)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(ids, targets)
    loss.backward()
    if updates:
        optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    """Train on rows of lengths drawn at random, and of the longest at last."""
    way = sys.argv[1]
    torch.manual_seed(0)
    model = GPT(num_layers=6).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if way == "longest_first":
        step(model, optimizer, MOST, updates=False)
    if way == "block_first":
        torch.empty(BLOCK_BYTES, dtype=torch.uint8, device="cuda")
    draw = random.Random(1)
    for length in [draw.randint(LEAST, MOST) for _ in range(STEPS)] + [MOST]:
        step(model, optimizer, length, updates=True)


if __name__ == "__main__":
    main()
