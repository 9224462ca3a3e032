"""Gradients are never set to None."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(6))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.randn(16384, 4096, device="cuda")).square().mean().backward()
    optimizer.step()
    if IS_CLEAN:
        optimizer.zero_grad()
