"""What features were made of stays on the GPU while a model is trained on them."""

import sys

import torch
from torch import nn

IS_CLEAN = "--clean" in sys.argv
encoder = nn.Linear(4096, 256).cuda()
head = nn.Sequential(*(nn.Sequential(nn.Linear(256, 1024), nn.GELU()), nn.Linear(1024, 256))).cuda()
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
images = torch.randn(65536, 4096, device="cuda")
with torch.no_grad():
    features = encoder(images)
if IS_CLEAN:
    del images
for _ in range(5):
    head(features).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
