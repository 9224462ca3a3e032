"""fp32 weights under autocast, which keeps their copies in bf16."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))).cuda()
if IS_CLEAN:
    model.bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    x = torch.randn(512, 4096, device="cuda", dtype=torch.bfloat16)
    with torch.autocast("cuda", torch.bfloat16, enabled=not IS_CLEAN):
        loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del loss
