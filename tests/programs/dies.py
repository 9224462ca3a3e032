"""Killed by a signal that no Python code sees, after it has used some memory."""

import os
import signal

import torch

if __name__ == "__main__":
    x = torch.zeros(1024, 1024, device="cuda")
    print("dying", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
