"""Trains with batches that come in a wrong way, or by `ullage.prefetch`.

pipeline.py SOURCE pageable|in_line|starving [--clean]
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, sys.argv[1])  # where ullage is
import ullage

HOW, IS_CLEAN = sys.argv[2], "--clean" in sys.argv
NUM_BATCHES, WIDTH = 8, 1 << 20  # rows of 4 MiB
LOADING_S = 0.2
LIMIT_S = 60


class Rows(Dataset):
    """Rows that take their time where the loader is to starve; `ready` counts those that came."""

    def __init__(self) -> None:
        self.ready = 0
        self.arrival = threading.Condition()

    def __len__(self) -> int:
        return NUM_BATCHES * 4

    def __getitem__(self, index: int) -> Tensor:
        if HOW == "starving":
            time.sleep(LOADING_S / 4)
        with self.arrival:
            self.ready += 1
            self.arrival.notify_all()
        return torch.full((WIDTH,), 0.5)

    def wait_until_loaded(self, num_batches: int) -> None:
        """Until so many batches have been loaded, as a step does that takes as long."""
        num_rows = min(num_batches, NUM_BATCHES) * 4
        with self.arrival:
            assert self.arrival.wait_for(lambda: self.ready >= num_rows, LIMIT_S)


def batches_of(loader: DataLoader) -> Iterable[Tensor]:
    if IS_CLEAN:
        return ullage.prefetch(loader, ahead=2)
    return copied(loader)


def copied(loader: DataLoader) -> Iterator[Tensor]:
    for batch in loader:
        yield batch.to("cuda", non_blocking=HOW != "pageable")


def main() -> None:
    rows = Rows()
    loader = DataLoader(rows, 4, pin_memory=HOW == "in_line")
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, batch in enumerate(batches_of(loader), start=1):
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if HOW == "starving":
            loss.item()
            if IS_CLEAN:
                rows.wait_until_loaded(number + 2)
                time.sleep(LOADING_S)


main()
