"""Data-parallel training of two ranks or more, under torchrun, where rank 1 keeps every batch."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH_BYTES = 4 << 20


def main() -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = DistributedDataParallel(nn.Linear(1024, 1024).cuda())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = []
    for _ in range(4):
        batch = torch.randn(BATCH_BYTES // 4096, 1024).cuda()
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 1:
            batches.append(batch)
    dist.destroy_process_group()


main()
