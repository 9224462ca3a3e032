"""Two training steps of a model that is compiled, or with the argument "eager" is not."""

import sys

import torch
from torch import nn


class Net(nn.Module):
    """Two layers with names."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What both take."""
        return self.down(self.up(x).relu())


model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
run = model if "eager" in sys.argv else torch.compile(model)
for _ in range(2):
    run(torch.randn(512, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
