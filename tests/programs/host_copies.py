"""Copies 1 GiB from the device, as a checkpoint does, lets it go, and copies it again."""

import torch

held = torch.empty(2**30, dtype=torch.uint8, device="cuda")
for _ in range(2):
    copy = held.cpu()
    del copy
try:
    torch.empty(2**56, dtype=torch.uint8)
except RuntimeError as error:
    print("can't allocate memory" in str(error))
