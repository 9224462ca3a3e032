"""Trains some steps and ends as it is told: killed, on a full disk, or out of memory."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time

import torch
from torch import nn

how = sys.argv[1]
model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(6):
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.2)
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "full_disk":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
    sys.exit(7)
if how == "out_of_memory":
    kept = []
    while True:
        kept.append(torch.empty(1 << 30, device="cuda"))
