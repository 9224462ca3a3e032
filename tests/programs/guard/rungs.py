"""A small stack of blocks that is trained with so many rows, for ladders of `ullage fit`.

python rungs.py ROWS [guarded LADDER SOURCE_OF_ULLAGE]
"""

import sys

import torch
from torch import nn


class Block(nn.Module):
    """A perceptron of two layers around which the input goes."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)

    def forward(self, x):
        """x and the result are (rows, 512)."""
        return x + self.down(torch.relu(self.up(x)))


def main():
    """Trains for two steps, or for a short, a long and a short one under a guard."""
    rows = int(sys.argv[1])
    model = nn.Sequential(*(Block() for _ in range(4))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(rows):
        model(torch.randn(rows, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    if len(sys.argv) == 2:
        for _ in range(2):
            step(rows)
        return
    sys.path.insert(0, sys.argv[4])
    import ullage

    with ullage.guard(model, optimizer, plans=sys.argv[3]) as guard:
        for number in (rows // 8, rows, rows // 8):
            guard.step(step, number)
        print(guard.num_recoveries, guard.rung)


if __name__ == "__main__":
    main()
