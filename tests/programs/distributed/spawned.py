"""Starts a process for each GPU by torch.multiprocessing.spawn, and runs ddp.py in each."""

import os
import runpy
import socket
from pathlib import Path

import torch.multiprocessing as mp

NUM_RANKS = 4


def work(rank: int, port: int) -> None:
    """One rank."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(NUM_RANKS),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    runpy.run_path(str(Path(__file__).with_name("ddp.py")), run_name="__main__")


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    mp.spawn(work, (number,), nprocs=NUM_RANKS)
