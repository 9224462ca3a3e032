"""What the test of docs/guide/pytest.md imports."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(1024, 4096)
        self.down = nn.Linear(4096, 1024)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def make_batch() -> Tensor:
    return torch.randn(512, 1024, device="cuda")


def loss_of(net: Net, batch: Tensor) -> Tensor:
    return net(batch).square().mean()
