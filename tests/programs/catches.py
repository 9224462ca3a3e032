"""Runs out of memory, catches it and goes on, in one of many ways: python catches.py WAY."""

import sys
from contextlib import suppress

import torch
from torch import Tensor, nn

GIB = 2**30
# What it is without a cache has no class of its own.
ERRORS = (torch.OutOfMemoryError, RuntimeError)
LARGE = 1 << 20  # rows of a batch that does not fit on 24 GB


def take(gib: float) -> Tensor:
    """Some memory."""
    return torch.empty(int(gib * GIB), dtype=torch.uint8, device="cuda")


def train(sizes: list[int], parts: int = 0) -> None:
    """Batches of so many rows; one that fails is left out, or tried again in parts as small."""
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 4096)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for size in sizes:
        batch = torch.randn(size, 1024, device="cuda")
        while len(batch):
            try:
                model(input=batch).square().sum().backward()
                optimizer.step()
                break
            except ERRORS:
                batch = batch[: len(batch) // parts] if parts else batch[:0]
            finally:
                optimizer.zero_grad()


def attempt(rows: int) -> None:
    """One try of a search, with a model of its own."""
    model = nn.Linear(1024, 4096).to("cuda")
    model(torch.randn(rows, 1024, device="cuda")).sum().backward()


def search() -> None:
    """Twice as many rows until it fails, then the last that fitted."""
    rows = LARGE // 64
    while True:
        try:
            attempt(rows)
        except ERRORS:
            break
        rows *= 2
    attempt(rows // 2)


def drop() -> None:
    """Goes on without it, with other memory of the same function."""
    with suppress(*ERRORS):
        take(30)
    take(5)


def drop_in_turn() -> None:
    """Likewise, by statements of their own."""
    try:
        take(30)
    except ERRORS:
        print("went on", file=sys.stderr)
    take(5)


def handle() -> None:
    """Takes less in the handler."""
    try:
        take(30)
    except ERRORS:
        take(15)


def retry() -> None:
    """Frees something and tries again."""
    held = [take(20)]
    for _ in range(2):
        try:
            take(10)
        except ERRORS:
            held.clear()


WAYS = {
    "four": lambda: train([LARGE] * 4),
    "one": lambda: train([1000, LARGE, 1000, 1000]),
    "lengths": lambda: train([1000, 500, LARGE, 700, 300]),
    "last": lambda: train([1000, LARGE]),
    "drop": drop,
    "drop_in_turn": drop_in_turn,
    "halves": lambda: train([LARGE] * 3, parts=2),
    "shrinks": lambda: train([1000, 1000, LARGE], parts=2),
    "search": search,
    "handle": handle,
    "retry": retry,
}

if __name__ == "__main__":
    WAYS[sys.argv[1]]()
