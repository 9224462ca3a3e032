"""Takes 64 MiB, prints "ready", and waits to be ended from outside: `sigterm.py "in C++"` does so
where no handler of Python's runs.
"""

import sys
import time

import torch

if __name__ == "__main__":
    block = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
    print("ready", flush=True)
    if sys.argv[1:] == ["in C++"]:
        torch.futures.Future().wait()  # type: ignore[no-untyped-call]
    time.sleep(120)
