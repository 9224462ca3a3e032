"""Tensors of 32 GiB at most, of which 30 GiB are let go; then, with --more, 60 GiB."""

import sys

import torch

large = torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
small = [torch.empty(1 << 28, dtype=torch.uint8, device="cuda") for _ in range(8)]
del large
if "--more" in sys.argv:
    torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
