"""Fails where its argument says: "forward", "backward", "optimizer" or "operation"."""

import sys

import torch
from torch import Tensor, nn


class Fragile(torch.autograd.Function):
    """Breaks on the way back."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        """x unchanged."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        """Never returns."""
        raise ArithmeticError("broken in backward")


class Inner(nn.Module):
    """A layer that may break."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        """x is (batch, 64)."""
        if self.place == "forward":
            raise ArithmeticError("broken in forward")
        if self.place == "operation":
            return x + torch.ones(3, device=x.device, dtype=torch.long)
        x = self.linear(x)
        return Fragile.apply(x) if self.place == "backward" else x


class Broken(torch.optim.SGD):
    """An optimizer that breaks."""

    def step(self, closure: None = None) -> None:
        """Never returns."""
        raise ArithmeticError("broken in optimizer")


def main() -> None:
    """One step, or less."""
    place = sys.argv[1]
    net = nn.Sequential(nn.Linear(64, 64), nn.Sequential(Inner(place))).cuda()
    kind = Broken if place == "optimizer" else torch.optim.SGD
    optimizer = kind(net.parameters(), lr=0.1)
    net(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()


if __name__ == "__main__":
    main()
