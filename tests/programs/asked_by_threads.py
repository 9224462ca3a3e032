"""Gives the device ever new work while other threads ask for the time; prints what they found.

Each size of a tensor is work that the log has not had, so that a thread that asks may come between
a row of the log and the work that it refers to.
"""

import json
import sys
import threading
import time

import torch

NUM_SIZES = 3000
BLOCK = 128
"""Numbers of the allocator's smallest block: each multiple of it is another size."""


def ask(is_done: threading.Event, errors: list[str]) -> None:
    """Asks until the work is done."""
    try:
        while not is_done.is_set():
            time.perf_counter()
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}")


def main() -> None:
    sys.setswitchinterval(1e-6)
    is_done, errors = threading.Event(), []
    threads = [threading.Thread(target=ask, args=(is_done, errors)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for size in range(1, NUM_SIZES):
        torch.ones(BLOCK * size, device="cuda").mul_(2)
    is_done.set()
    for thread in threads:
        thread.join()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.ones(1 << 28, device="cuda")
    end.record()
    end.synchronize()
    print(json.dumps({"errors": errors, "elapsed_ms": start.elapsed_time(end)}))


main()
