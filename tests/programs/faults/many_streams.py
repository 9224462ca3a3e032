"""Every stream that cuBLAS is called on gets a workspace of its own."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda().eval()
streams = [torch.cuda.Stream() for _ in range(1 if IS_CLEAN else 16)]
with torch.no_grad():
    for turn in range(48):
        with torch.cuda.stream(streams[turn % len(streams)]):
            model(torch.randn(4096, 1024, device="cuda"))
