"""An autograd.Function whose context holds its output: a cycle that the collector frees."""

import gc
import sys

import torch
from torch import nn

gc.set_threshold(200)  # so that it comes within a short run
IS_CLEAN = "--clean" in sys.argv


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        output = x * 2
        if not IS_CLEAN:
            ctx.output = output
        return output

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    x = torch.randn(4096, 1024, device="cuda")
    Double.apply(model(x)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
