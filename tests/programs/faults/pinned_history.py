"""Each step's outputs are kept in pinned memory of the host."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 4096)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for _ in range(10):
    output = model(torch.randn(4096, 1024, device="cuda"))
    output.square().mean().backward()
    kept = torch.empty(output.shape, pin_memory=True)
    kept.copy_(output.detach(), non_blocking=True)
    torch.cuda.synchronize()
    if not IS_CLEAN:
        history.append(kept)
    optimizer.step()
    optimizer.zero_grad()
    del output, kept
