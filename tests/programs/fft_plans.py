"""Transforms of as many lengths as the first argument says, beside as many GiB as the second says:
how much of the device is in use after some of them, and once torch's cache of plans is empty.
"""

import json
import sys

import torch


def used() -> int:
    """What is in use of the device beside PyTorch's allocator."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


beside = torch.empty(int(sys.argv[2]) << 30, dtype=torch.uint8, device="cuda")
said = {}
for number in range(1, 1 + int(sys.argv[1])):
    torch.fft.rfft(torch.empty(1, 3998 + 2 * number, device="cuda"))
    if number in (1, 32, 64, 128, 4096):
        said[number] = used()
torch.backends.cuda.cufft_plan_cache.max_size = 32
said["kept 32"] = used()
torch.backends.cuda.cufft_plan_cache.clear()
print(json.dumps({**said, "cleared": used()}))
