"""The whole data set is on the GPU."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
STEPS, BATCH = 6, 4096
place = {"pin_memory": True} if IS_CLEAN else {"device": "cuda"}
data = torch.empty(STEPS * BATCH, 16384, **place)
model = nn.Sequential(nn.Linear(16384, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):
    batch = data[step * BATCH : (step + 1) * BATCH].to("cuda", non_blocking=True)
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    del batch
