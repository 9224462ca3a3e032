"""A list of outputs fills the GPU."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096)).cuda().eval()
outputs = []
with torch.no_grad():
    for _ in range(80):
        output = model(torch.randn(16384, 1024, device="cuda"))
        outputs.append(output.mean().item() if IS_CLEAN else output)
        del output
