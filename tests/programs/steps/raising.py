"""Optimizers whose steps raise, which the program catches; what is read after that, and three good
steps.
"""

import json
import sys

import torch

parameter = torch.nn.Parameter(torch.ones(4, device="cuda"))
adam, lbfgs = torch.optim.Adam([parameter]), torch.optim.LBFGS([parameter])
sums = []


def fail() -> float:
    """A closure without a loss."""
    raise ValueError


for step in (adam.step, lambda: lbfgs.step(fail)):
    parameter.grad = torch.ones(4, device="cuda").to_sparse()  # which Adam refuses
    try:
        step()
    except (RuntimeError, ValueError):
        sums.append(torch.ones(4, device="cuda").sum().item())
after = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
for _ in range(3):
    parameter.grad = torch.ones(4, device="cuda")
    adam.step()
print(json.dumps(sums), file=sys.stderr)
