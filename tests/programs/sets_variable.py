"""Sets an environment variable before it imports torch."""

import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device="cuda")
