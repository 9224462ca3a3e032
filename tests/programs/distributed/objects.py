"""Objects of several sizes between ranks, by every collective that takes them; each rank's last
line is JSON: for each size who sent what came, and how long it was.

objects.py nccl | gloo
"""

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group(sys.argv[1])
RANK, NUM_RANKS = dist.get_rank(), dist.get_world_size()


def text(rank: int, size: int) -> str:
    """Of each rank another one, and longer."""
    return chr(ord("a") + rank) * (size + rank)


def told(texts: list[Any] | None) -> list[str] | None:
    return None if texts is None else [f"{text[0]} {len(text)}" for text in texts]


def exchange(size: int) -> dict[str, Any]:
    """All of them once."""
    own = text(RANK, size)
    gathered: list[Any] = [None] * NUM_RANKS
    dist.all_gather_object(gathered, own)
    collected: list[Any] | None = [None] * NUM_RANKS if RANK == 1 else None
    dist.gather_object(own, collected, dst=1)
    shared = [own, own]
    dist.broadcast_object_list(shared, src=1)
    part: list[Any] = [None]
    parts = [text(rank, size) for rank in range(NUM_RANKS)] if RANK == 0 else None
    dist.scatter_object_list(part, parts, src=0)
    received: list[Any] | None = None
    if RANK == 0:
        dist.send_object_list([own], dst=1)
    elif RANK == 1:
        dist.recv_object_list(received := [None], src=0)
    names = ("gathered", "collected", "shared", "part", "received")
    return {
        name: told(each)
        for name, each in zip(names, (gathered, collected, shared, part, received), strict=True)
    }


found = {size: exchange(size) for size in (10, 4_200, 3_000_000)}
alone = dist.new_group([0])
if RANK == 0:
    dist.all_gather_object(own := [None], text(0, 5_000), group=alone)
    found["alone"] = told(own)
line = {"rank": RANK, "found": found, "peak": torch.cuda.max_memory_allocated()}
sys.stderr.write(json.dumps(line) + "\n")  # whole, between the lines of others
dist.destroy_process_group()
