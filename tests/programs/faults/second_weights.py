"""A checkpoint was loaded to the GPU and is still named."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(6))).cuda()
place = "cpu" if IS_CLEAN else "cuda"
checkpoint = {name: torch.zeros(p.shape, device=place) for name, p in model.state_dict().items()}
model.load_state_dict(checkpoint)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(1024, 4096, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
