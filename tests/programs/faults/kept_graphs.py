"""Losses are kept with their graphs: total += loss, and backward(retain_graph=True)."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(4))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0.0
for _ in range(7):
    loss = model(torch.randn(16384, 1024, device="cuda")).square().mean()
    loss.backward(retain_graph=not IS_CLEAN)
    total += loss.item() if IS_CLEAN else loss
    optimizer.step()
    optimizer.zero_grad()
