"""A norm that works in fp32, in a model that is bf16."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

IS_CLEAN = "--clean" in sys.argv
WIDTH = 2048


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        if IS_CLEAN:
            return F.layer_norm(x, (WIDTH,), self.weight)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


layers = [nn.Sequential(Norm(), nn.Linear(WIDTH, WIDTH)) for _ in range(5)]
model = nn.Sequential(*layers).cuda().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(16384, WIDTH, device="cuda", dtype=torch.bfloat16)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    del x
