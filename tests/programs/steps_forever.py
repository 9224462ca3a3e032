"""Trains without end; prints the number of each step, before it."""

import itertools

import torch
from torch import nn

if __name__ == "__main__":
    net = nn.Linear(512, 512).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    for step in itertools.count():
        print("begin", step, flush=True)
        net(torch.randn(32, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
