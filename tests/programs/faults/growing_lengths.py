"""Sequences of growing lengths, so that no free segment is large enough for the next."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    length = 16384 if IS_CLEAN else 4096 + 2458 * step
    model(torch.randn(4, length, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
