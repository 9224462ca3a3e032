"""An evaluation after training that keeps all logits on the GPU, in one tensor that grows."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4096)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(512, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
kept = None
with torch.no_grad():
    for _ in range(16):
        logits = model(torch.randn(512, 256, device="cuda"))
        logits = logits.cpu() if IS_CLEAN else logits
        kept = logits if kept is None else torch.cat([kept, logits])
