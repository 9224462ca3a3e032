"""Trains two steps, with as many process groups as its word says; each reduces once."""

import sys

import torch
from torch import distributed

distributed.init_process_group("nccl")
ones = torch.ones(1024, device="cuda")
distributed.all_reduce(ones)
ranks = list(range(distributed.get_world_size()))
for _ in range(int(sys.argv[1]) - 1):
    distributed.all_reduce(ones, group=distributed.new_group(ranks))
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(4, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
