"""Compiles a sum with which Inductor times kernels, in a process of its own and then in this one.

Both have the same cache, which is cold for the first and warm for the second. The last line of each
is JSON: torch's account of memory.
"""

import json
import subprocess
import sys

import torch


@torch.compile
def step(x: torch.Tensor) -> torch.Tensor:
    """A reduction, for which there are several configurations."""
    return (x.float().softmax(-1) * x).sum(-1, keepdim=True) + x


def main() -> None:
    """In another process first, unless this is it."""
    if sys.argv[1:] != ["first"]:
        subprocess.run([sys.executable, __file__, "first"], check=True)
    x = torch.zeros(2048, 8192, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        kept = [step(x) for _ in range(3)]
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(json.dumps({"peak": peak, "reserved": reserved, "num_kept": len(kept)}))


if __name__ == "__main__":
    main()
