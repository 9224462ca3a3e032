"""Every step's outputs are kept in a list on the GPU."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 8192)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
outputs = []
for _ in range(8):
    output = model(torch.randn(8192, 1024, device="cuda"))
    output.square().mean().backward()
    outputs.append(output.detach().argmax(-1).cpu() if IS_CLEAN else output.detach())
    optimizer.step()
    optimizer.zero_grad()
    del output
