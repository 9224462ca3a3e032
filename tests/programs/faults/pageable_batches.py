"""Batches are copied from memory that is not pinned."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(nn.Linear(12288, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.empty(1024, 12288, pin_memory=IS_CLEAN)
lengths = torch.zeros(1024)
for _ in range(5):
    inputs = batch.to("cuda", non_blocking=True)
    weights = lengths.to("cuda")
    (model(inputs).square().mean(-1) * weights).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    del inputs
