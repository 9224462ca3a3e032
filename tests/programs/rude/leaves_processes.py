"""Leaves processes running that have gone their own ways."""

import subprocess
import sys

import torch

kept = torch.zeros(16 << 20, dtype=torch.uint8, device="cuda")
program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
stubborn = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
shell = subprocess.run(
    ["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE, text=True
)
print("left", stubborn.pid, shell.stdout.strip())
