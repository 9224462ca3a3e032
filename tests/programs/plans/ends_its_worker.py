"""Ends the worker that makes this run: `ends_its_worker.py FILE`, which counts how often."""

import os
import signal
import sys
from pathlib import Path

WORKERS = (b"ray::", b"search_on_workers.py")


def worker():
    """The process of the executor's above this one."""
    pid = os.getpid()
    while not any(name in Path(f"/proc/{pid}/cmdline").read_bytes() for name in WORKERS):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


with Path(sys.argv[1]).open("a") as file:
    file.write("x")
os.kill(worker(), signal.SIGKILL)
signal.pause()  # this process is ended with that one
