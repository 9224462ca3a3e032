"""Evaluation records a graph."""

import contextlib
import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(4))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(8192, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad() if IS_CLEAN else contextlib.nullcontext():
        for _ in range(2):
            score = model(torch.randn(16384, 1024, device="cuda")).square().mean().item()
