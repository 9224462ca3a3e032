"""All pairs of differences at once, to be summed up in the next line."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Linear(1024, 64).cuda()
points = torch.randn(4096, 64, device="cuda")


class Search(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(1024, 64)

    def forward(self, x):
        y = self.embed(x)
        if IS_CLEAN:
            return torch.cdist(y, points).argmin(-1)
        return (y[:, None] - points[None]).square().sum(-1).argmin(-1)


model = Search().cuda().eval()
with torch.no_grad():
    for _ in range(4):
        model(torch.randn(4096, 1024, device="cuda"))
