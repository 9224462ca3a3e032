"""Trains on several GPUs, where one rank runs out of memory within every third backward.

torchrun --nproc-per-node N long_batch_ranks.py SOURCE_OF_ULLAGE ddp|fsdp2 STEPS

The other ranks are in their collectives then. The last line is a document: for each rank, what the
allocator had after each step, and what the guard did.
"""

import contextlib
import io
import json
import os
import sys

import torch
import torch.distributed as dist
from long_batch import WIDTH, Model
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, sys.argv[1])
import ullage

LENGTH, SPIKE_BYTES = 1024, 1_600_000_000


class Spike(torch.autograd.Function):
    """Gives back its input; its backward uses much memory for a moment."""

    @staticmethod
    def forward(ctx, x, num_bytes):
        """The same values."""
        ctx.num_bytes = num_bytes
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        """The same gradient."""
        torch.empty(ctx.num_bytes, dtype=torch.uint8, device=gradient.device)
        return gradient, None


def main():
    """Trains, and prints."""
    wrapper, steps = sys.argv[2], int(sys.argv[3])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = Model().to(device)
    num_bytes = [0]
    model.blocks[3].register_forward_hook(lambda _, __, x: Spike.apply(x, num_bytes[0]))
    if wrapper == "ddp":
        model = DistributedDataParallel(model, device_ids=[device.index])
    else:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch):
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    said = io.StringIO()
    rows = []
    store = dist.distributed_c10d._get_default_store()
    with contextlib.redirect_stderr(said), ullage.guard(model, optimizer, calm_steps=1) as guard:
        for number in range(steps):
            num_bytes[0] = SPIKE_BYTES if number % 3 == 2 and rank == world_size - 1 else 0
            batch = torch.randn(8, LENGTH, WIDTH, device=device)
            guard.step(step, batch)
            # The host of a phantom does not wait for the collectives of others.
            store.set(f"{number} of {rank}", "done")
            store.wait([f"{number} of {each}" for each in range(world_size)])
            rows.append([torch.cuda.memory_allocated(), guard.rung, guard.num_recoveries])
    store.set(f"rows of {rank}", json.dumps({"rows": rows, "said": said.getvalue().splitlines()}))
    if rank == 0:
        print(json.dumps([json.loads(store.get(f"rows of {each}")) for each in range(world_size)]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
