"""Trains with batches that come in a wrong way, or by `ullage.prefetch`.

pipeline.py SOURCE pageable|in_line|starving [--clean | --workers]
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
NUM_BATCHES = 8
BATCH = (4, 1 << 20)  # 16 MiB
LOADING_S = 0.2
LIMIT_S = 60


class Batches(Dataset):
    """Batches that are there, or that take their time where the loader is to starve."""

    def __init__(self) -> None:
        self.batch = torch.full(BATCH, 0.5)
        if HOW == "in_line":
            self.batch = self.batch.pin_memory()
        self.num_loaded = 0
        self.arrival = threading.Condition()

    def __len__(self) -> int:
        return NUM_BATCHES

    def __getitem__(self, index: int) -> Tensor:
        if HOW == "starving":
            time.sleep(LOADING_S)
        with self.arrival:
            self.num_loaded += 1
            self.arrival.notify_all()
        return self.batch

    def wait_for(self, num_batches: int) -> None:
        """Until so many are loaded: as a step does that takes longer than a batch."""
        with self.arrival:
            count = min(num_batches, NUM_BATCHES)
            assert self.arrival.wait_for(lambda: self.num_loaded >= count, LIMIT_S)


def copy_each(loader: DataLoader) -> Iterator[Tensor]:
    for batch in loader:
        yield batch.to("cuda", non_blocking=HOW == "in_line")


def main() -> None:
    dataset = Batches()
    loader = DataLoader(dataset, batch_size=None, num_workers=int("--workers" in sys.argv))
    batches: Iterable[Tensor] = ullage.prefetch(loader, ahead=2) if IS_CLEAN else copy_each(loader)
    model = nn.Sequential(nn.Linear(BATCH[1], 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, batch in enumerate(batches, start=1):
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        if HOW == "starving" and IS_CLEAN:
            dataset.wait_for(number + 2)
            time.sleep(LOADING_S)


main()
