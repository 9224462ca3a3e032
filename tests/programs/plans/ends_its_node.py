"""Ends the process of Ray's that it runs in; when that was often enough, trains: `FILE TIMES`.

FILE counts how often it was begun.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from blocks import Stack, batch


def node():
    """The process of Ray's above this one."""
    pid = os.getpid()
    while b"ray::" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


begun, times = Path(sys.argv[1]), int(sys.argv[2])
with begun.open("a") as file:
    file.write("x")
if begun.stat().st_size <= times:
    os.kill(node(), signal.SIGKILL)
    signal.pause()  # this process is ended with that one
model = Stack().cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(batch("cuda")).sum().backward()
optimizer.step()
