"""What a plan for a model of `tensor_parallel.py` has to be made for.

tensor_parallel_plan.py KIND
"""

import json
import sys
from dataclasses import asdict

import torch
from tensor_parallel import KINDS

from ullage.act.techniques.applying.apply import describe_program

model = KINDS[sys.argv[1]]()
found = describe_program(model, torch.optim.AdamW(model.parameters()), [])
print(json.dumps(asdict(found)))
