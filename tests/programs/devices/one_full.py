"""Takes a GiB of device 0, and of device 1 what there is and more."""

import torch

kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda:0")]
while True:
    kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda:1"))
