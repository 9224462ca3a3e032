"""DeepSpeed's ZeRO 1 or 2 of a small transformer in bf16; prints the sizes of what is partitioned.

deepspeed_zero.py STAGE
"""

import json
import os
import sys

import deepspeed
import torch
from layers import Transformer, loss_of, make_tokens

STAGE = int(sys.argv[1])

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
model = Transformer(4)
engine, optimizer, _, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_optimization": {"stage": STAGE},
    },
)
for _ in range(3):
    tokens = make_tokens(4, device)
    engine.backward(loss_of(engine(tokens), tokens))
    engine.step()
(part,) = optimizer.single_partition_of_fp32_groups
states = optimizer.optimizer.state[part]
found = {
    "parameters": sum(parameter.numel() for parameter in model.parameters()),
    "part": part.numel(),
    "states": [states[name].numel() for name in ("exp_avg", "exp_avg_sq")],
    "allocated": torch.cuda.memory_allocated(),
}
torch.distributed.destroy_process_group()
print(json.dumps(found))
