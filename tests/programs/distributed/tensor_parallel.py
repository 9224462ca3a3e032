"""Tensor and sequence parallel, after PyTorch's tutorial: some ranks share a layer (two, or as many
as is said), and such groups are sharded by FSDP2.

tensor_parallel.py [NUM_RANKS]
"""

import os
import sys

import torch
import torch.distributed as dist
from layers import Transformer, loss_of, make_tokens
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
tp_size = int(sys.argv[1]) if len(sys.argv) > 1 else 2
mesh = init_device_mesh(
    "cuda", (dist.get_world_size() // tp_size, tp_size), mesh_dim_names=("dp", "tp")
)
model = Transformer(4).to(device)
parallelize_module(
    model,
    mesh["tp"],
    {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    },
)
for layer in model.layers.values():
    parallelize_module(
        layer,
        mesh["tp"],
        {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            ),
            "attention.query": ColwiseParallel(),
            "attention.key": ColwiseParallel(),
            "attention.value": ColwiseParallel(),
            "attention.output": RowwiseParallel(output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        },
    )
    fully_shard(layer, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
for _ in range(3):
    tokens = make_tokens(4, device)
    loss_of(model(tokens), tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
