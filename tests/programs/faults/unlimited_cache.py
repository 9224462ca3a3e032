"""Features are remembered for every sample that was ever seen."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
LIMIT = 2
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096)).cuda().eval()
cache = {}


@torch.no_grad()
def features_of(number):
    if number not in cache:
        if IS_CLEAN and len(cache) == LIMIT:
            del cache[min(cache)]
        cache[number] = model(torch.randn(16384, 1024, device="cuda"))
    return cache[number]


for number in range(10):
    features_of(number)
