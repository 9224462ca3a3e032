"""A process takes 50 GiB of a GPU and is killed; then this one takes as much.

killed.py [--alive]     # it is not killed
"""

import json
import signal
import subprocess
import sys

HOLD = """
import sys, torch
kept = torch.empty(50 << 30, dtype=torch.uint8, device="cuda")
print("it is there", flush=True)
sys.stdin.read()
"""
with subprocess.Popen(
    [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
) as child:
    child.stdout.readline()
    import torch

    torch.zeros(1, device="cuda")  # a context, and a segment of 2 MiB
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    sys.stderr.write(json.dumps({"used": total - free}) + "\n")
    if "--alive" not in sys.argv:
        child.send_signal(signal.SIGKILL)  # it is not waited for: a zombie has given all back
        while torch.cuda.mem_get_info()[0] < 70 << 30:
            pass
    kept = torch.empty(50 << 30, dtype=torch.uint8, device="cuda")
    child.kill()
