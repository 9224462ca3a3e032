"""Runs out of memory thousands of times and catches it, with many tensors held; prints the seconds
of a failure, and of one of the first, as JSON.
"""

import json
import time

import torch


def fail():
    started_s = time.perf_counter()
    try:
        torch.empty(2**50, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return time.perf_counter() - started_s


held = {f"tensor {number}": torch.zeros(1 << 16, device="cuda") for number in range(3000)}
first_s = fail()
times = sorted(fail() for _ in range(4000))
print(json.dumps({"first_s": first_s, "median_s": times[len(times) // 2], "sum_s": sum(times)}))
