"""Trains some steps and records itself, with a function that is told of them:
`logged_steps.py SOURCE`.
"""

from __future__ import annotations

import json
import sys

import torch
from torch import nn

sys.path.insert(0, sys.argv[1])
import ullage

rows, peaks = [], []


def train(steps):
    model = nn.Linear(512, 512).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(steps):
        torch.cuda.reset_peak_memory_stats()
        model(torch.ones(8 * (step + 1), 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        peaks.append(torch.cuda.max_memory_allocated())


def log(values, step):
    rows.append([step, values])


recording = ullage.record.attach(mode="counters", log=log, publish=False)
train(4)
recording.detach()
train(1)
print(json.dumps({"rows": rows, "peaks": peaks}))
