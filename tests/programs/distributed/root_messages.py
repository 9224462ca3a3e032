"""The rank's collectives that are messages: to all, from all, or from and to a root."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
size = dist.get_world_size()
rows = torch.zeros(size, 1024, device="cuda")
if sys.argv[1] == "all_to_all":
    dist.all_to_all_single(torch.empty_like(rows), rows)
else:
    dist.all_gather_into_tensor(rows, torch.zeros(1024, device="cuda"))
