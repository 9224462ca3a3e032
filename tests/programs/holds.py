"""A trainer that keeps each step's output and its loss, under names of a function and an object."""

import torch
from torch import nn


class Loud(str):
    """A key that does not want to be looked at."""

    __slots__ = ()

    def __repr__(self):
        raise AssertionError("a key was asked for its text")


class Trainer:
    """Has a history, as trainers do."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.history = []

    def train(self, num_steps):
        """Steps of which each does the same."""
        total = 0.0
        for _ in range(num_steps):
            output = self.model(torch.randn(1024, 1024, device="cuda"))
            loss = output.square().mean()
            loss.backward(retain_graph=True)
            self.history.append({Loud("output"): output.detach().clone()})
            total = total + loss
            self.optimizer.step()
            self.optimizer.zero_grad()
            del output, loss


Trainer().train(8)
