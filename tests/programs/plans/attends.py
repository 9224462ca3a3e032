"""Trains a layer whose attention is not causal, nor dropped out unless a rate is given, and prints
how often a step computed it.
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

BATCH, HEADS, TOKENS, WIDTH = 2, 4, 64, 64
COUNT = [0]
DROPOUT = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0


class Attention(nn.Module):
    """Self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(BATCH, TOKENS, WIDTH)."""
        heads = self.inner(x).view(BATCH, TOKENS, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(*heads, dropout_p=DROPOUT)
        return self.outer(found.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH))


class Counts(TorchDispatchMode):
    """Counts attention, forward."""

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        name = function._schema.name
        COUNT[0] += "scaled_dot_product" in name and "backward" not in name
        return function(*args, **(kwargs or {}))


if __name__ == "__main__":
    model = nn.Sequential(Attention()).to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.zeros(BATCH, TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
    for _ in range(2):
        COUNT[0] = 0
        with Counts():
            model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print([COUNT[0]])
