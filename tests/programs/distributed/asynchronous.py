"""Programs with asynchronous work, one a case: `asynchronous.py CASE`.

Each gives work to the device in a way of its own and waits for it in another, or not at all, for
some rounds. What is allocated and reserved must be alike in each run of one. Rank 0 of 8 is enough.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

ROUNDS, ITEMS = 6, 1 << 20
if sys.argv[1:] == ["avoids_record_streams"]:
    os.environ["TORCH_NCCL_AVOID_RECORD_STREAMS"] = "1"

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

DEVICE = torch.device("cuda", 0)


def take(factor: int = 1) -> torch.Tensor:
    return torch.empty(factor * ITEMS, device=DEVICE)


def futures() -> None:
    """As an optimizer does that keeps the futures alone; no host ever waits."""
    waiting = []
    for _ in range(4):
        work = dist.reduce_scatter_tensor(take(), take(8), async_op=True)
        waiting.append(work.get_future())
    torch.futures.collect_all(waiting).wait()


def futures_of_lists() -> None:
    waiting = [
        dist.all_gather([take() for _ in range(8)], take(), async_op=True).get_future()
        for _ in range(4)
    ]
    torch.futures.collect_all(waiting).wait()


def futures_then() -> None:
    output = take()
    future = dist.reduce_scatter_tensor(output, take(8), async_op=True).get_future()
    future.then(lambda done: done.value()[0].mul_(2)).wait()


def futures_and_synchronize() -> None:
    futures()
    torch.cuda.synchronize()


def futures_and_read() -> None:
    futures()
    take().sum().item()


def dropped_handles() -> None:
    for _ in range(4):
        dist.all_gather_into_tensor(take(8), take(), async_op=True)


def waits_late() -> None:
    works = [dist.all_reduce(take(), async_op=True) for _ in range(8)]
    for work in reversed(works):
        work.wait()


def polls() -> None:
    work = dist.all_reduce(take(), async_op=True)
    while not work.is_completed():
        pass


def send_and_receive() -> None:
    works = [dist.isend(take(), 1), dist.irecv(take(), 1)]
    for work in works:
        work.wait()


def batched_messages() -> None:
    operations = [dist.P2POp(dist.isend, take(), 1), dist.P2POp(dist.irecv, take(), 7)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def messages_dropped() -> None:
    dist.batch_isend_irecv([dist.P2POp(dist.isend, take(), 1), dist.P2POp(dist.irecv, take(), 7)])


def all_to_all() -> None:
    dist.all_to_all_single(take(8), take(8), async_op=True).wait()


def coalesced() -> None:
    with dist._coalescing_manager(device=DEVICE, async_ops=True) as manager:
        for _ in range(4):
            dist.all_reduce(take())
    manager.wait()


def barrier() -> None:
    dropped_handles()
    dist.barrier()


def functional_collectives() -> None:
    gathered = functional.all_gather_tensor(take(), 0, dist.group.WORLD)
    functional.wait_tensor(gathered).mul_(2)


def several_groups() -> None:
    for group in GROUPS:
        dist.all_reduce(take(), group=group, async_op=True)


def side_stream() -> None:
    """Work on another stream; a loop that waits by asking."""
    block = take()
    SIDE.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(SIDE):
        block.add_(1)
        dist.all_reduce(take(), async_op=True)
    block.record_stream(SIDE)
    event = SIDE.record_event()
    del block
    while not event.query():
        pass


def pinned_copies() -> None:
    host = torch.empty(ITEMS, pin_memory=True)
    with torch.cuda.stream(SIDE):
        block = host.to(DEVICE, non_blocking=True)
    torch.cuda.current_stream().wait_stream(SIDE)
    block.record_stream(torch.cuda.current_stream())
    dist.all_reduce(block, async_op=True)


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).to(DEVICE)


def trainer(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    def step() -> None:
        model(torch.empty(64, 1024, device=DEVICE)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def data_parallel(**options: Any) -> Callable[[], None]:
    model = DistributedDataParallel(layers(), device_ids=[0], bucket_cap_mb=4, **options)
    return trainer(model, torch.optim.SGD(model.parameters(), 0.1))


def with_hook() -> Callable[[], None]:
    model = DistributedDataParallel(layers(), device_ids=[0], bucket_cap_mb=4)
    model.register_comm_hook(None, bf16_compress_hook)
    return trainer(model, torch.optim.SGD(model.parameters(), 0.1))


def with_sharded_optimizer() -> Callable[[], None]:
    model = DistributedDataParallel(layers(), device_ids=[0])
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    return trainer(model, optimizer)


def sharded() -> Callable[[], None]:
    model = layers()
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    return trainer(model, torch.optim.Adam(model.parameters(), 0.1))


CASES: Mapping[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        futures, futures_of_lists, futures_then, futures_and_synchronize, futures_and_read,
        dropped_handles, waits_late, polls, send_and_receive, batched_messages, messages_dropped,
        all_to_all, coalesced, barrier, functional_collectives, several_groups, side_stream,
        pinned_copies,
    )
} | {"avoids_record_streams": futures}  # fmt: skip
TRAINERS: Mapping[str, Callable[[], Callable[[], None]]] = {
    "data_parallel": data_parallel,
    "data_parallel_views": lambda: data_parallel(gradient_as_bucket_view=True),
    "comm_hook": with_hook,
    "sharded_optimizer": with_sharded_optimizer,
    "fully_sharded": sharded,
}

if __name__ == "__main__":
    name = sys.argv[1]
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", device_id=DEVICE)
    SIDE = torch.cuda.Stream()
    GROUPS = (
        [dist.new_group(ranks) for ranks in ([0, 1, 2, 3], list(range(8)))]
        if name == "several_groups"
        else []
    )
    run = CASES[name] if name in CASES else TRAINERS[name]()
    for _ in range(ROUNDS):
        run()
    dist.destroy_process_group()
