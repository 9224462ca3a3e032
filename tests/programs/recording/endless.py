"""Runs on and on with a small ring, and prints after each round what its recording has come to.

endless.py SOURCE_OF_ULLAGE PATH forwards|idle|training|models|failures|holders ROUNDS
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, sys.argv[1])  # where ullage is
import ullage
from ullage.players.inside.attached import current

PATH, KIND, ROUNDS = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
RING = "1MiB"


class Server(nn.Module):
    """A module that allocates `count` times."""

    def forward(self, x: Tensor, count: int) -> Tensor:
        for _ in range(count):
            torch.empty(128, device="cuda")
        return x


def forwards() -> Callable[[], None]:
    """A server: marks, some events, and no claim."""
    server, x = Server(), torch.ones(4, 4, device="cuda")

    def run() -> None:
        with torch.no_grad():
            for _ in range(4000):
                server(x, 5)

    return run


def idle() -> Callable[[], None]:
    """On the CPU, with gradients: marks alone, and no step."""
    server, x = Server(), torch.ones(4, 4)

    def run() -> None:
        for _ in range(4000):
            server(x, 0)

    return run


def training() -> Callable[[], None]:
    """Steps with gradients that are new each time, of a model with buffers, and scratch."""
    layers = [nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32)) for _ in range(10)]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x = torch.ones(8, 32, device="cuda")

    def run() -> None:
        for _ in range(60):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def models() -> Callable[[], None]:
    """A search over models, each new."""
    x = torch.ones(8, 32, device="cuda")

    def run() -> None:
        for _ in range(100):
            model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(10)]).cuda()
            model(x).sum().backward()

    return run


def failures() -> Callable[[], None]:
    """A search that lives with allocations that fail."""

    def run() -> None:
        for _ in range(200):
            try:
                torch.empty(1 << 40, device="cuda")
            except torch.OutOfMemoryError:
                continue

    return run


def holders() -> Callable[[], None]:
    """Tensors whose holders are others in each round."""

    def run() -> None:
        globals()["tensors"] = {
            torch.empty(1, device="cuda").data_ptr() + number: torch.empty(1 << 16, device="cuda")
            for number in range(200)
        }

    return run


def sizes() -> dict[str, Any]:
    """What there is now, and of it in the file."""
    recorder = current()
    assert recorder is not None
    recorder._write("written by a test")
    fields = recorder.snapshot()["ullage"]
    return {
        "resident_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * 4096,
        "file_bytes": PATH.stat().st_size,
        "lost": fields["measured"]["num_lost"],
        "rows": {name: len(fields[name]) for name in (
            "marks", "claims", "holders", "graphs", "workspaces", "ooms", "modules", "warnings",
        )},
        "steps": len(fields["measured"]["step_peaks"]),
        "warnings": fields["warnings"],
    }  # fmt: skip


def main() -> None:
    torch.cuda.init()
    recording = ullage.record.attach(PATH, mode="events", ring=RING, every=None, publish=False)
    run = globals()[KIND]()
    rounds = []
    for _ in range(ROUNDS):
        run()
        rounds.append(sizes())
    recording.detach()
    print(json.dumps(rounds))


main()
