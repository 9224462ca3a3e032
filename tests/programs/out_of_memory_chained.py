"""Runs out of memory in a forward pass, and raises an error of its own from that one."""

import torch
from torch import nn


class Repeat(nn.Module):
    """A linear layer whose result is repeated beyond any GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1024, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x is (batch, 1024)."""
        return self.linear(x)[:, :, None].expand(-1, -1, 2**28).contiguous()


def main() -> None:
    """One pass."""
    model = Repeat().cuda()
    x = torch.randn(256, 1024, device="cuda")
    try:
        model(x)
    except torch.OutOfMemoryError as error:
        raise RuntimeError("this model is too large") from error


if __name__ == "__main__":
    main()
