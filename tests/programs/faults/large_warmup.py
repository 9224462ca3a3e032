"""A check before training with a larger batch than training has."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(4))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    batch = 8192 if step or IS_CLEAN else 65536
    model(torch.randn(batch, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
