"""A residual convolutional network with batch norms, SGD with momentum, channels last."""

import itertools

import torch
from torch import nn
from torch.nn import functional
from truth import Truth


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm_1 = nn.BatchNorm2d(channels)
        self.conv_2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm_2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x is (batch, channels, height, width)."""
        y = self.relu(self.norm_1(self.conv_1(x)))
        return self.relu(self.norm_2(self.conv_2(y)) + self.shortcut(x))


class Net(nn.Module):
    """A stem, three stages, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True)
        )
        self.pool = nn.MaxPool2d(3, 2, 1)
        widths = (32, 32, 64, 128)
        self.stages = nn.ModuleList(
            nn.Sequential(Residual(before, width, 1 + (n > 0)), Residual(width, width, 1))
            for n, (before, width) in enumerate(itertools.pairwise(widths))
        )
        self.classifier = nn.Linear(128, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """images is (batch, 3, height, width)."""
        x = self.pool(self.stem(images))
        for stage in self.stages:
            x = stage(x)
        return self.classifier(functional.adaptive_avg_pool2d(x, 1).flatten(1))


def main() -> None:
    """Three steps."""
    with Truth() as truth:
        model = truth.owner(Net().cuda().to(memory_format=torch.channels_last))
        optimizer = truth.optimizer(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
        judge = truth.owner(nn.CrossEntropyLoss(label_smoothing=0.1), "CrossEntropyLoss")
        for _ in range(3):
            images = torch.randn(32, 3, 224, 224).cuda()
            images = truth.input(images.contiguous(memory_format=torch.channels_last))
            labels = truth.input(torch.randint(1000, (32,)).cuda())
            loss = judge(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
