"""A process that may have a twentieth of the device."""

import sys

import torch

IS_CLEAN = "--clean" in sys.argv
if not IS_CLEAN:
    torch.cuda.set_per_process_memory_fraction(0.05)
first = torch.zeros(3 << 30, dtype=torch.uint8, device="cuda")
second = torch.zeros(2 << 30, dtype=torch.uint8, device="cuda")
first[: 2 << 30] += second
