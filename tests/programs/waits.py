"""Waits for a value that a kernel would compute: for ever, were it not for the count."""

import sys

import torch

error = torch.rand(64, 64, device="cuda")
tries = 0
while error.norm().item() < 0.9 and tries < int(sys.argv[1]):
    error = error @ error
    tries += 1
