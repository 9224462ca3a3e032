"""Trains with a loader as it is and with `ullage.prefetch`, and prints what batches came.

prefetches.py SOURCE plain|prefetch|ahead
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, sys.argv[1])  # where ullage is
import ullage

HOW = sys.argv[2]
WORKERS = int(sys.argv[3]) if len(sys.argv) > 3 else 0
NUM_BATCHES = 6


class Noisy(Dataset):
    """Rows with noise, as an augmentation adds it; the twentieth is broken where `is_broken`."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken = is_broken

    def __len__(self) -> int:
        return NUM_BATCHES * 4

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if self.is_broken and index == 20:
            raise ValueError("row 20 is broken")
        return {"x": torch.rand(1 << 17), "index": torch.tensor(index)}


def batches_of(loader: DataLoader) -> Iterator[dict[str, Tensor]]:
    if HOW == "plain":
        return ({name: item.cuda() for name, item in batch.items()} for batch in loader)
    return iter(ullage.prefetch(loader, ahead=2 if HOW == "ahead" else None))


def train(loader: DataLoader) -> list[object]:
    """Two epochs, whose steps draw random numbers too."""
    layer = nn.Linear(1 << 17, 1).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    rows: list[object] = []
    for _ in range(2):
        for batch in batches_of(loader):
            assert batch["x"].is_cuda
            indices = batch["index"].tolist()
            layer(batch["x"]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            rows.append([indices, torch.rand(1).item()])
    return rows


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "ullage" in thread.name]


def main() -> None:
    torch.manual_seed(0)
    order = torch.Generator().manual_seed(3)
    loader = DataLoader(Noisy(), 4, shuffle=True, generator=order, num_workers=WORKERS)
    rows = train(loader)
    document = {"rows": rows}
    if HOW != "plain":
        document |= {"length": len(ullage.prefetch(loader)), "before_error": 0}
        for _ in ullage.prefetch(loader, ahead=2):
            document["during"] = threads()
            break
        document["after"] = threads()
        try:
            for _ in ullage.prefetch(DataLoader(Noisy(is_broken=True), 4), ahead=2):
                document["before_error"] += 1
        except ValueError as error:
            document["error"] = str(error)
        document["after_error"] = threads()
    print(json.dumps(document))


main()
