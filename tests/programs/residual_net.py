"""Trains a small residual network, three steps.

Usage: residual_net.py float32|float16
"""

import sys

import torch
from torch import nn


class Block(nn.Module):
    """Two 3 x 3 convolutions beside the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.layers(x))


def main(precision: str) -> None:
    """Runs the steps, float16 under autocast."""
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3),
        *[Block(64) for _ in range(3)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        images = torch.randn(16, 3, 128, 128, device="cuda")
        labels = torch.randint(10, (16,), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16, enabled=precision == "float16"):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main(sys.argv[1])
