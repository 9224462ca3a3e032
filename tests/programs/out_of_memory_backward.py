"""Runs out of memory within backward: forward leaves little room, and a gradient needs more."""

import torch
from torch import nn

MIB = 2**20


class Block(nn.Module):
    """A layer whose result is read twice, so that backward holds more than forward kept."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2048, 2048, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x is (batch, 2048)."""
        return x + torch.relu(self.linear(x))


def main() -> None:
    """Takes all memory but 64 MiB between forward and backward."""
    model = nn.Sequential(*(Block() for _ in range(6))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4096, 2048, device="cuda")
    loss = model(x).square().mean()
    rest = torch.cuda.mem_get_info()[0] - 64 * MIB
    ballast = torch.empty(rest, dtype=torch.uint8, device="cuda")
    loss.backward()
    optimizer.step()
    print(ballast.nbytes)


if __name__ == "__main__":
    main()
