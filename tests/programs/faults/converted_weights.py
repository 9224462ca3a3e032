"""Weights that are moved to the GPU in float32 and converted there."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(12)))
model = model.half().cuda() if IS_CLEAN else model.cuda().half()
with torch.no_grad():
    for _ in range(4):
        model(torch.randn(8, 2048, device="cuda", dtype=torch.half))
