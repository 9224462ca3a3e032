"""Trains a step, then stays in a part of the next one, as a job that hangs.

    stalls.py forward|backward|optimizer|out_of_memory

Before the part a second passes, so that it is the next to be published; where memory runs out, none
does.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

PART = sys.argv[1]
FOREVER_S, MORE_THAN_A_SECOND_S = 3600, 1.2


class Layer(nn.Module):
    """A layer that may stay in its forward, or run out of memory there."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        if self.num_calls == 2 and PART == "out_of_memory":
            try:
                torch.empty(1 << 45, device="cuda")
            except torch.OutOfMemoryError:
                time.sleep(FOREVER_S)
        if self.num_calls == 2 and PART == "forward":
            time.sleep(FOREVER_S)
        return self.linear(x)


def stay(*_: Any) -> None:
    """For good, in the second step."""
    if model.num_calls == 2:
        time.sleep(FOREVER_S)


model = Layer().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
if PART == "backward":
    model.linear.weight.register_hook(stay)
for step in range(2):
    if PART != "out_of_memory" and step:
        time.sleep(MORE_THAN_A_SECOND_S)
    loss = model(torch.ones(8, 64, device="cuda")).sum()
    if PART != "forward" and step:
        time.sleep(MORE_THAN_A_SECOND_S)
    loss.backward()
    if PART == "optimizer" and step:
        time.sleep(MORE_THAN_A_SECOND_S)
        optimizer.register_step_pre_hook(stay)
    optimizer.step()
    optimizer.zero_grad()
