"""A process with a memory cap: takes memory until it has none left; prints one JSON object.

    python capped.py SOURCE_OF_ULLAGE [CAP]

Without CAP it is set from outside, by `ullage exec --cap`.
"""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

import torch

sys.path.insert(0, sys.argv[1])
import ullage
from ullage.act.techniques.applying.cap import read_process_memory
from ullage.ground.errors import SpecError

STEP = 96 << 20


def take_all() -> tuple[int, int]:
    """Takes memory until the allocator has none: the most that the process used, and reserved."""
    blocks: list[Any] = []
    used, reserved = 0, 0
    try:
        while len(blocks) < 4096:
            blocks.append(torch.empty(STEP, dtype=torch.uint8, device="cuda"))
            used = max(used, read_process_memory(torch, 0).used_bytes)
            reserved = torch.cuda.memory_reserved()
    except torch.OutOfMemoryError:
        return used, reserved
    raise RuntimeError("there was no end")


def refuse(limit: object) -> str:
    """What is said of a cap that cannot be."""
    try:
        ullage.cap(limit)  # type: ignore[arg-type]
    except SpecError as error:
        return str(error)
    return "nothing"


def recover() -> list[int]:
    """Recoveries of a guarded training that a cap makes run out of memory."""
    layers = [torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)]
    block = torch.nn.Sequential(*layers)
    model = torch.nn.Sequential(*(copy.deepcopy(block) for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch: Any) -> None:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with ullage.guard(model, optimizer, cap="3GiB") as guard:
        for rows in (1 << 10, 1 << 14, 1 << 10):
            guard.step(step, torch.zeros(rows, 1024, device="cuda"))
        used = read_process_memory(torch, 0).used_bytes
    return [guard.num_recoveries, guard.num_steps, used]


def main() -> None:
    """Takes memory, and prints."""
    document: dict[str, Any] = {}
    if len(sys.argv) > 2:
        made = ullage.cap(sys.argv[2])
        document["parts"] = [made.cap_bytes, made.context_bytes, made.allocator_bytes]
        document["is_of_process"] = made.is_of_process
    document["used"], document["reserved"] = take_all()
    torch.cuda.empty_cache()
    if len(sys.argv) > 2:
        document["refused"] = [refuse("600MiB"), refuse("20G")]
        document["guarded"] = recover()
        ullage.cap(None)
        torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
    print(json.dumps(document))


if __name__ == "__main__":
    main()
