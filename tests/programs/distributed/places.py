"""All-reduces of all ranks, of those of one machine, of one rank of each machine, and of a group
with few channels; each of another size. With "split", groups are split from the first one.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device if "split" in sys.argv else None)
rank, size, local = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
mesh = dist.init_device_mesh("cuda", (size // local, local))
options = dist.ProcessGroupNCCL.Options()
options.config.max_ctas = 4
few = dist.new_group(pg_options=options)
for number, group in enumerate((None, mesh.get_group(1), mesh.get_group(0), few)):
    dist.all_reduce(torch.ones(1000 * (number + 1), device=device), group=group)
