"""Ranks that share a GPU, each with so many GiB of it, one after another: none calls set_device.

torchrun --nproc-per-node 2 one_gpu.py 30 30 [--apart]      # apart: each sees a GPU of its own
"""

import json
import os
import sys

if "--apart" in sys.argv:
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["RANK"]

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for turn, word in enumerate(sys.argv[1:3]):
    if turn == rank:
        kept = torch.empty(int(float(word) * 2**30), dtype=torch.uint8, device="cuda")
    dist.barrier()
free, total = torch.cuda.mem_get_info()
sys.stderr.write(json.dumps({"used": total - free}) + "\n")  # whole, between the lines of others
dist.barrier()
dist.destroy_process_group()
