"""Fully sharded training with fully_shard, after PyTorch's tutorial of FSDP2; --hsdp replicates
over nodes of two, --offload keeps parameters on the host.
"""

import os
import sys

import torch
import torch.distributed as dist
from layers import Transformer, loss_of, make_tokens
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("cpu:gloo,cuda:nccl")
world_size = dist.get_world_size()
if "--hsdp" in sys.argv:
    mesh = init_device_mesh("cuda", (2, world_size // 2), mesh_dim_names=("replicate", "shard"))
else:
    mesh = init_device_mesh("cuda", (world_size,), mesh_dim_names=("shard",))
options = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
if "--offload" in sys.argv:
    options["offload_policy"] = CPUOffloadPolicy()
with torch.device("meta"):
    model = Transformer(4)
for layer in model.layers.values():
    fully_shard(layer, **options)
fully_shard(model, **options)
model.to_empty(device="cpu" if "--offload" in sys.argv else device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    tokens = make_tokens(4, device)
    loss_of(model(tokens), tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
