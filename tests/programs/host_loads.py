"""Loads the weights of a file into a model, reads them before and after its move, and compares."""

import json
import sys

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024))
torch.manual_seed(3)
wanted = {name: torch.rand(value.shape) for name, value in model.state_dict().items()}
torch.save(wanted, sys.argv[1])
model.load_state_dict(torch.load(sys.argv[1], mmap=len(sys.argv) > 2))
equal = [torch.equal(value, wanted[name]) for name, value in model.state_dict().items()]
sums = [round(value.double().sum().item(), 3) for value in wanted.values()]
model.to("cuda")
print(json.dumps({"equal": equal, "sums": sums}))
