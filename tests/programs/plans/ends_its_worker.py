"""Ends the worker that makes this run: `ends_its_worker.py FILE`, which counts how often."""

import os
import signal
import sys
from pathlib import Path


def worker():
    """The process above this one that Ray, or the search's own process, has started."""
    pid, search = os.getpid(), int(os.environ["SEARCH_PID"])
    while True:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if parent == search or b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
        pid = parent


with Path(sys.argv[1]).open("a") as file:
    file.write("x")
os.kill(worker(), signal.SIGKILL)
signal.pause()  # this process is ended with that one
