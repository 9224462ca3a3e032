"""A small transformer trained by Accelerate, in the way that its configuration says; prints what it
came to.

accelerated.py [NUMBER OF LAYERS]
"""

import json
import sys

import torch
from accelerate import Accelerator
from layers import LENGTH, VOCABULARY, Transformer, loss_of
from torch.utils.data import DataLoader

NUM_LAYERS = int(sys.argv[1]) if len(sys.argv) > 1 else 4

accelerator = Accelerator()
torch.manual_seed(0)
model = Transformer(NUM_LAYERS)
rows = torch.randint(VOCABULARY, (64, LENGTH))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows, batch_size=4))
for step, tokens in enumerate(loader):
    if step == 3:
        break
    accelerator.backward(loss_of(model(tokens), tokens))
    optimizer.step()
    optimizer.zero_grad()
state = accelerator.state
plugin = state.deepspeed_plugin
found = {
    "type": state.distributed_type.value,
    "zero_stage": None if plugin is None else plugin.zero_stage,
    "num_processes": state.num_processes,
    "precision": state.mixed_precision,
    "allocated": torch.cuda.max_memory_allocated(),
}
accelerator.end_training()
print(json.dumps(found), flush=True)
