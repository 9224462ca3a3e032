"""Measures what a recording adds to copies, launches and batches; prints one JSON object.

    python movement_program.py SOURCE_OF_ULLAGE

Times are of the process's CPU. In each round every way is measured once, in an order of its own,
and the unrecorded process twice.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.data import DataLoader

sys.path.insert(0, sys.argv[1])
import ullage

COUNT, NUM_BATCHES, ROUNDS = 1_000, 1_000, 45
COPY_BYTES = 1 << 16
EARLY = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)  # before any recording
PAGEABLE = torch.empty(COPY_BYTES, dtype=torch.uint8)
SMALL = torch.empty(64, dtype=torch.uint8, pin_memory=True)
TARGET = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
LOADER = DataLoader([0] * NUM_BATCHES, batch_size=None)


def time_us(call: Callable[[], object]) -> float:
    """CPU time of a call."""
    began_s = time.process_time()
    for _ in range(COUNT):
        call()
    return (time.process_time() - began_s) / COUNT * 1e6


def batch_us() -> float:
    """CPU time of a batch that is there at once."""
    began_s = time.process_time()
    for _ in LOADER:
        pass
    return (time.process_time() - began_s) / NUM_BATCHES * 1e6


def copy(source: Tensor) -> Callable[[], object]:
    """A copy to the device."""
    target = TARGET[: len(source)]
    return lambda: target.copy_(source, non_blocking=True)


def times(late: Tensor) -> dict[str, float]:
    """The time of each operation; `late` was pinned during the recording."""
    return {
        "pinned": time_us(copy(late)),
        "early": time_us(copy(EARLY)),
        "pageable": time_us(copy(PAGEABLE)),
        "small": time_us(copy(SMALL)),
        "launch": time_us(lambda: TARGET.add_(1)),
        "batch": batch_us(),
    }


def measure(way: str) -> dict[str, float]:
    """The same, unrecorded or recorded."""
    is_recorded = not way.startswith("off")
    recording = ullage.record.attach(None, mode=way, publish=False) if is_recorded else None
    late = torch.empty(2 * COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    try:
        return times(late[:COPY_BYTES])
    finally:
        if recording is not None:
            recording.detach()
        del late
        torch._C._host_emptyCache()  # so that the next one is pinned anew


def main() -> None:
    """All rounds."""
    torch.cuda.init()
    ways = ["off", "off_again", "events"]
    rounds = []
    for _ in range(ROUNDS):
        random.shuffle(ways)
        rounds.append({way: measure(way) for way in ways})
    print(json.dumps(rounds))


main()
