"""Trains some steps, with a run of a tracker that is active, and prints what the run was told.

tracked.py run                  the run is a stand-in for wandb's; `ullage record` records
tracked.py SOURCE               this program records itself, and has an object that is told
"""

from __future__ import annotations

import atexit
import json
import sys
from types import ModuleType

rows = []
atexit.register(lambda: print(json.dumps({"rows": rows, "peaks": peaks})))  # after all others


class Run:
    """Keeps what is logged."""

    step = 0

    def define_metric(self, *_, **__):
        """Nothing to do."""

    def log(self, values, step=None, commit=True):
        """Of a tracker of the program's own: with a step."""
        rows.append([step or values["ullage/step"], values])


import torch
from torch import nn

peaks = []


def train(steps):
    model = nn.Linear(512, 512).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(steps):
        torch.cuda.reset_peak_memory_stats()
        model(torch.ones(8 * (step + 1), 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        peaks.append(torch.cuda.max_memory_allocated())


if sys.argv[1] == "run":
    sys.modules["wandb"] = ModuleType("wandb")
    sys.modules["wandb"].run = Run()
    train(4)
else:
    sys.path.insert(0, sys.argv[1])
    import ullage

    recording = ullage.record.attach(mode="counters", trackers=Run(), publish=False)
    train(4)
    recording.detach()
    train(1)
