"""Leaves by os._exit, with a code."""

import os
import sys

import torch

kept = torch.zeros(16 << 20, dtype=torch.uint8, device="cuda")
os._exit(int(sys.argv[1]))
