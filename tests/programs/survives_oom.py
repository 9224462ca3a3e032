"""Runs out of memory, catches it, and goes on with less; prints the part of a PiB that it got."""

import torch

if __name__ == "__main__":
    num_bytes = 2**50
    while True:
        try:
            block = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            num_bytes //= 2
        else:
            break
    print(num_bytes)
