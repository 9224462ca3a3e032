"""The last iteration's output is kept until the next, for a figure that is printed there."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 16384)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
previous = None
for _ in range(5):
    output = model(torch.randn(16384, 1024, device="cuda"))
    output.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    previous = output.mean().item() if IS_CLEAN else output
    del output
