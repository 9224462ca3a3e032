"""Known counts go to all ranks; a launch has the address of those received by chance."""

import ctypes
import json

import torch
import torch.distributed as dist

WITHIN_AN_OPERATION, OUTSIDE = 1, 0
cuda = ctypes.CDLL(None)

dist.init_process_group("nccl")
device = torch.device("cuda", 0)
sent = torch.arange(4, device=device)
read = sent.tolist()
received = torch.empty(4 * dist.get_world_size(), dtype=torch.long, device=device)
dist.all_gather_into_tensor(received, sent)
cuda.ullage_follow_thread(WITHIN_AN_OPERATION)
cuda.cublasSscal_v2(None, 4, None, ctypes.c_void_p(received.data_ptr()), 1)
cuda.ullage_follow_thread(OUTSIDE)
print(json.dumps({"sent": read, "received": received[:4].tolist()}), flush=True)
dist.destroy_process_group()
