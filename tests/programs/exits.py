"""Leaves with exit code 5, after it has used some memory."""

import sys

import torch

if __name__ == "__main__":
    x = torch.zeros(1024, 1024, device="cuda")
    print("leaving", flush=True)
    sys.exit(5)
