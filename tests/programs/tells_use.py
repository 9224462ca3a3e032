"""Runs a program, and after each step of its optimizer prints what CUDA says is used of the GPU, as
a line of JSON; then waits for a line of input.

    python tells_use.py train.py --steps 3
"""

import json
import os
import runpy
import sys

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def tell(_optimizer, _arguments, _keywords):
    """What is used, as NVML counts it."""
    free, total = torch.cuda.mem_get_info()
    print(json.dumps({"pid": os.getpid(), "used": total - free}), flush=True)
    sys.stdin.readline()


register_optimizer_step_post_hook(tell)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
