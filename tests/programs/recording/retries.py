"""Trains on a GPU whose memory a larger batch just fits into: every fourth step needs a larger
block than the cache has, so the allocator gives back what it keeps and asks again, which is a
retry. A larger batch also takes longer.

python retries.py STEPS
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

MIB = 1 << 20
SLOW_S = 0.05
model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters())
half = torch.cuda.get_device_properties(0).total_memory * 55 // 100
for step in range(int(sys.argv[1])):
    batch = torch.empty(half + step // 4 * 32 * MIB, dtype=torch.uint8, device="cuda")
    model(torch.ones(8, 256, device="cuda")).sum().backward()
    if step and step % 4 == 0:
        time.sleep(SLOW_S)
    optimizer.step()
    optimizer.zero_grad()
    del batch
stats = torch.cuda.memory_stats()
print("counts", stats["num_alloc_retries"], stats["num_device_free"])
