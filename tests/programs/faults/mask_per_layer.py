"""Every layer registers a causal mask of its own."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
LENGTH, WIDTH = 8192, 512


def make_mask():
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        if not IS_CLEAN:
            self.register_buffer("mask", make_mask())

    def forward(self, x):
        return self.linear(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(7))
        if IS_CLEAN:
            self.register_buffer("mask", make_mask())

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(LENGTH * 4, WIDTH, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
