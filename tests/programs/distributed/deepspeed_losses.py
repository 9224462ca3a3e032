"""A small transformer trained by DeepSpeed on the CPU, with real arithmetic; prints its losses.

deepspeed_losses.py STAGE
"""

import json
import os
import sys

import deepspeed
import torch
from layers import Transformer, loss_of, make_tokens

torch.set_num_threads(1)
torch.manual_seed(0)
model = Transformer(2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
config = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": int(sys.argv[1])},
}
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
torch.manual_seed(int(os.environ["RANK"]))
losses = []
for _ in range(3):
    tokens = make_tokens(1, torch.device("cpu"))
    loss = loss_of(engine(tokens), tokens)
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
torch.distributed.destroy_process_group()
if os.environ["RANK"] == "0":
    print(json.dumps(losses), flush=True)
