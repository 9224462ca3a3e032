"""Meets the other ranks in one of several ways, exchanges values and objects with them, and prints
what came.

exchange.py env | tcp | file | store | device
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
found: dict[str, object] = {}


def meet(how: str) -> None:
    """Makes the default process group."""
    place = {"rank": RANK, "world_size": WORLD_SIZE}
    if how == "env":
        dist.init_process_group("cpu:gloo,cuda:nccl")
    elif how == "tcp":
        dist.init_process_group("nccl", init_method="tcp://192.0.2.1:23456", **place)
    elif how == "file":
        dist.init_process_group("nccl", init_method="file:///nowhere/to/meet", **place)
    elif how == "device":
        dist.init_process_group("nccl", device_id=device)
    else:
        store = dist.TCPStore("192.0.2.1", 23456, WORLD_SIZE, RANK == 0, timedelta(seconds=5))
        store.set(f"rank {RANK}", "here")
        store.wait([f"rank {rank}" for rank in range(WORLD_SIZE)])
        found["store"] = [store.get(f"rank {rank}").decode() for rank in range(WORLD_SIZE)]
        found["arrived"] = store.add("arrived", 1)
        dist.init_process_group("nccl", store=store, **place)


def listening() -> list[str]:
    """The sockets of this process that listen."""
    sockets = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists()}
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]


meet(sys.argv[1])
gloo = dist.new_group(backend="gloo")
dist.monitored_barrier(gloo)
dist.barrier(gloo)
dist.barrier()
for name, where, group in (("cuda", device, None), ("cpu", "cpu", gloo)):
    total = torch.tensor([2.0]).to(where)
    dist.all_reduce(total, group=group)
    gathered = [torch.zeros(1, dtype=torch.long).to(where) for _ in range(WORLD_SIZE)]
    dist.all_gather(gathered, torch.tensor([RANK]).to(where), group=group)
    found[name] = [total.item(), [one.item() for one in gathered]]
objects: list[object] = [None] * WORLD_SIZE
dist.all_gather_object(objects, {"from": RANK})
collected: list[object] | None = [None] * WORLD_SIZE if RANK == 0 else None
dist.gather_object(RANK, collected, dst=0, group=gloo)
shared = [f"of {RANK}"]
dist.broadcast_object_list(shared, src=0)
part: list[object] = [None]
dist.scatter_object_list(
    part, [f"part {rank}" for rank in range(WORLD_SIZE)] if RANK == 0 else None
)
mesh = init_device_mesh("cuda", (2, WORLD_SIZE // 2), mesh_dim_names=("dp", "tp"))
row = torch.ones(4).to(device)
dist.all_reduce(row, group=mesh["tp"].get_group())
spread = torch.zeros(2 * WORLD_SIZE // 2).to(device)
dist.all_gather_into_tensor(spread, torch.ones(2).to(device), group=mesh["tp"].get_group())
found |= {
    "objects": objects,
    "collected": collected,
    "shared": shared,
    "part": part,
    "place": [mesh.get_local_rank("dp"), mesh.get_local_rank("tp")],
    "row": row.tolist(),
    "spread": spread.tolist(),
    "listening": listening(),
}
dist.destroy_process_group()
print(json.dumps(found))
