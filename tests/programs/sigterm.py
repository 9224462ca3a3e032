"""Takes 64 MiB, prints "ready", and waits to be ended from outside."""

import time

import torch

if __name__ == "__main__":
    block = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
    print("ready", flush=True)
    time.sleep(120)
