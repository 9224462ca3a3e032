"""Adam's two states in fp32 are most of the peak."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))).cuda()
if IS_CLEAN:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
else:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(4):
    model(torch.randn(512, 4096, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
