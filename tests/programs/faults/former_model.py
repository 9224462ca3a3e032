"""A model for each fold, while the one before is held with its gradients and states."""

import gc
import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv


def train():
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(6))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        model(torch.randn(256, 2048, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


first = train()
if IS_CLEAN:
    del first
    gc.collect()
second = train()
