"""Starts Python in many ways; each says how many GPUs it sees."""

import json
import multiprocessing
import os
import subprocess
import sys

CODE = "import torch; print(torch.cuda.device_count())"
USE = "; torch.zeros(1, device='cuda')"


def count():
    import torch

    torch.zeros(8 << 20, dtype=torch.uint8, device="cuda")
    return torch.cuda.device_count()


if __name__ == "__main__":
    python = sys.executable
    bare = {"PATH": os.environ["PATH"]}
    started = {
        "shell": subprocess.Popen(
            ["sh", "-c", f"{python} -c '{CODE}'"], stdout=subprocess.PIPE, text=True
        ),
        "isolated": subprocess.Popen(
            [python, "-I", "-c", CODE + USE], stdout=subprocess.PIPE, text=True
        ),
        "emptied": subprocess.Popen(
            [python, "-c", CODE], stdout=subprocess.PIPE, text=True, env=bare
        ),
    }
    seen = {}
    for name in ("spawn", "forkserver"):
        with multiprocessing.get_context(name).Pool(1) as pool:
            seen[name] = pool.apply(count)
            pool.close()
            pool.join()
    seen |= {name: int(process.communicate()[0]) for name, process in started.items()}
    print(json.dumps(seen))
