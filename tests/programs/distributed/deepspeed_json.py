"""A small transformer trained by DeepSpeed, with the configuration that it is given.

deepspeed_json.py --deepspeed FILE [--layers N]
"""

import argparse
import json
import os

import deepspeed
import torch
from layers import Transformer, loss_of, make_tokens

parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed", required=True)
parser.add_argument("--layers", type=int, default=4)
args = parser.parse_args()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
model = Transformer(args.layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=args.deepspeed)
for _ in range(3):
    tokens = make_tokens(4, device)
    engine.backward(loss_of(engine(tokens), tokens))
    engine.step()
found = {
    "zero_stage": engine.zero_optimization_stage(),
    "optimizer_on": str(engine.zero_offload_optimizer().device)
    if engine.zero_offload_optimizer()
    else None,
    "allocated": torch.cuda.max_memory_allocated(),
}
torch.distributed.destroy_process_group()
print(json.dumps(found), flush=True)
