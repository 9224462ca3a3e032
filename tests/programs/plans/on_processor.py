"""Imports torch, and goes as far as its word says: "imports", "makes" an optimizer, or "trains"."""

import sys

import torch

if sys.argv[1] != "imports":
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8)) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if sys.argv[1] == "trains":
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
print(torch.__version__)
