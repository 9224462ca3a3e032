"""Each step's result refers to itself, so that only the garbage collector frees it."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Result:
    def __init__(self, output):
        self.output = output.detach()
        self.notes = [{} for _ in range(90)]  # what a real program has around it
        self.describe = None if IS_CLEAN else lambda: self.output.shape


for _ in range(40):
    output = model(torch.randn(8192, 1024, device="cuda"))
    output.square().mean().backward()
    result = Result(output)
    optimizer.step()
    optimizer.zero_grad()
    del output, result
