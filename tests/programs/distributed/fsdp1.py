"""Fully sharded training with FullyShardedDataParallel, after PyTorch's tutorial."""

import functools
import os
import sys

import torch
import torch.distributed as dist
from layers import Block, Transformer, loss_of, make_tokens
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
model = FullyShardedDataParallel(
    Transformer(4),
    auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    cpu_offload=CPUOffload("--offload" in sys.argv),
    device_id=device,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    tokens = make_tokens(4, device)
    loss_of(model(tokens), tokens).backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
