"""Trains with a loss outside the model, for which there is memory only once the graph is let go.

long_loss.py SOURCE_OF_ULLAGE

It measures what the allocator has at the end of forward, limits it to that and half of what the
loss takes, and goes on under `ullage.guard_model`. The last line is a document.
"""

import contextlib
import io
import json
import sys

import torch
from long_batch import WIDTH, Block
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, sys.argv[1])
import ullage

BATCH, LENGTH, VOCABULARY, STEPS = 8, 512, 4096, 3


def main():
    """Trains, and prints."""
    torch.manual_seed(0)
    blocks = [Block() for _ in range(6)]
    model = nn.Sequential(nn.Sequential(*blocks), nn.Linear(WIDTH, VOCABULARY)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    targets = torch.zeros(BATCH * LENGTH, dtype=torch.int64, device="cuda")
    forward, reserved, most, after = [], [], [], []

    def step():
        inputs = torch.randn(BATCH, LENGTH, WIDTH, device="cuda")
        logits = model(inputs).flatten(0, 1)
        torch.cuda.reset_peak_memory_stats()
        forward.append(torch.cuda.memory_allocated())
        reserved.append(torch.cuda.memory_reserved())
        loss = F.cross_entropy(logits, targets)
        most.append(torch.cuda.max_memory_allocated())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del inputs, logits, loss
        torch.cuda.empty_cache()
        after.append(torch.cuda.memory_allocated())

    for _ in range(2):
        step()
    total = torch.cuda.get_device_properties(0).total_memory
    limit = reserved[-1] + (most[-1] - forward[-1]) // 2
    torch.cuda.set_per_process_memory_fraction(limit / total)
    said = io.StringIO()
    with contextlib.redirect_stderr(said), ullage.guard_model(model, optimizer) as guard:
        for _ in range(STEPS):
            step()
    document = {
        "limit": limit, "forward": forward, "most": most, "after": after,
        "recoveries": guard.num_recoveries, "said": said.getvalue().splitlines(),
    }  # fmt: skip
    print(json.dumps(document))


if __name__ == "__main__":
    main()
