"""Steps that allocate alike, with some thousand events each, after parameters that stay."""

from __future__ import annotations

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(40)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
x = torch.ones(8, 64, device="cuda")
for _ in range(40):
    for _ in range(1000):
        torch.empty(512, device="cuda")
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
