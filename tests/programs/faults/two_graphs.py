"""Two losses are made before either backward."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(4))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def make_loss():
    return model(torch.randn(16384, 1024, device="cuda")).square().mean()


for _ in range(4):
    if IS_CLEAN:
        make_loss().backward()
        make_loss().backward()
    else:
        first, second = make_loss(), make_loss()
        (first + second).backward()
        del first, second
    optimizer.step()
    optimizer.zero_grad()
