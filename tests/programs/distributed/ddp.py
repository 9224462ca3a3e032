"""Data parallel training, after PyTorch's tutorial of DistributedDataParallel."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).to(device)
model = DistributedDataParallel(model, device_ids=[device.index])
if "--zero" in sys.argv:
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
else:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(3):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(
        model(torch.randn(64, 512, device=device)), torch.zeros(64, 512, device=device)
    )
    loss.backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
