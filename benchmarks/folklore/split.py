"""Keeps a tensor of each step beside a larger temporary one; prints what the allocator holds."""

import sys

import torch
from torch import Tensor

MIB = 2**20


def empty(mib: int) -> Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


kept = []
for step in range(16):
    temporary = empty(1024 if sys.argv[1] == "keeping" else 1024 - 48 * step)
    del temporary
    if sys.argv[1] == "keeping":
        kept.append(empty(640))
    used, held = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
print(f"step {step}: {used / MIB:.0f} MiB allocated, {held / MIB:.0f} MiB reserved")
