"""Takes pinned memory in the ways that programs do; nothing of it is written to."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

MIB = 2**20
torch.zeros(1, device="cuda")
if "empty" in sys.argv:
    kept = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
if "method" in sys.argv:
    copied = torch.zeros(5 * MIB, dtype=torch.uint8).pin_memory()
if "again" in sys.argv:  # the block that went is taken again
    del kept
    other = torch.empty(4 * MIB, dtype=torch.uint8, pin_memory=True)
if "loader" in sys.argv:
    data = TensorDataset(torch.zeros(8, MIB, dtype=torch.uint8))
    for (batch,) in DataLoader(data, batch_size=2, pin_memory=True):
        batch.to("cuda", non_blocking=True)
if "uneven" in sys.argv:
    uneven = torch.empty(int(8.1 * 2**30), dtype=torch.uint8, pin_memory=True)
if "large" in sys.argv:
    large = torch.empty(2**30, dtype=torch.uint8, pin_memory=True)
