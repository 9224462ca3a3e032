"""The optimizer makes temporaries as large as all parameters together."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))).cuda()
optimizer = torch.optim.SGD(
    model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, foreach=not IS_CLEAN
)
for _ in range(4):
    model(torch.randn(64, 4096, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
