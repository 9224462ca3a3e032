"""This process uses the GPU, and so does a child that it starts; prints the child's peak."""

import subprocess
import sys

import torch

CHILD = """
import torch
x = torch.empty(32 * 2**20, dtype=torch.uint8, device="cuda")
print(torch.cuda.max_memory_allocated())
"""

if __name__ == "__main__":
    x = torch.empty(16 * 2**20, dtype=torch.uint8, device="cuda")
    subprocess.run([sys.executable, "-c", CHILD], check=True)
