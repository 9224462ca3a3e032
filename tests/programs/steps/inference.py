"""Eight forwards without gradients; with the argument "careless" in training mode."""

import sys

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).cuda()
if "careless" not in sys.argv:
    model.eval()
for _ in range(8):
    with torch.inference_mode():
        model(torch.randn(64, 1024, device="cuda"))
print("ran to its end", flush=True)
