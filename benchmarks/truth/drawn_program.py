"""A process of a drawn program: takes memory of one or two GPUs in its turn, and keeps it.

    python drawn_program.py PLAN.json [RANK]

Started by itself, by torchrun, or by another process of the program (see drawn.py). A rank takes
what the plan says when the rank before it is done, and ends when all are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PLAN = Path(sys.argv[1])
plan = json.loads(PLAN.read_text())
RANK = int(sys.argv[2] if len(sys.argv) > 2 else os.environ.get("RANK", 0))
if plan["devices"] == "a visible one each":
    os.environ["CUDA_VISIBLE_DEVICES"] = str(RANK)

import torch  # noqa: E402

MIB = 1 << 20
PIECE_MIB = 64


def take(num_mib: int, device: int) -> list[object]:
    """So much of a GPU, in the plan's way; what it returns holds it."""
    size, where = num_mib * MIB, f"cuda:{device}"
    match plan["taken"]:
        case "parameters":
            parameter = torch.nn.Parameter(torch.empty(size // 8, device=where))
            parameter.sum().backward()
            return [parameter]
        case "pieces":
            return [
                torch.empty(PIECE_MIB * MIB, dtype=torch.uint8, device=where)
                for _ in range(num_mib // PIECE_MIB)
            ]
        case "a graph":
            torch.cuda.set_device(device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.Stream(device)):
                kept = torch.empty(size, dtype=torch.uint8, device=where)
            return [graph, kept]
        case _:  # what the allocator does with it is set from outside
            return [torch.empty(size, dtype=torch.uint8, device=where)]


def take_all(kept: list[object]) -> None:
    """What the plan has for this rank, an error caught as the plan says."""
    for device, num_mib in plan["shares"][RANK]:
        match plan["caught"]:
            case "and lost":
                try:
                    kept += take(num_mib, device)
                except RuntimeError:  # without a cache it is no OutOfMemoryError
                    torch.cuda.empty_cache()
            case "and halved":
                while True:
                    try:
                        kept += take(num_mib, device)
                        break
                    except RuntimeError:  # without a cache it is no OutOfMemoryError
                        num_mib = num_mib // 2 // PIECE_MIB * PIECE_MIB
            case "at the end":
                try:
                    kept += take(num_mib, device)
                except RuntimeError:
                    sys.exit(0)
            case _:
                kept += take(num_mib, device)


def wait_for(rank: int) -> None:
    """Until a rank is done, well or not."""
    while rank >= 0 and not PLAN.with_name(f"done-{rank}").exists():
        time.sleep(0.01)


def start_others() -> list[subprocess.Popen[bytes]]:
    """The other ranks, where this process starts them."""
    if plan["processes"] != "started by another" or RANK:
        return []
    return [
        subprocess.Popen([sys.executable, __file__, str(PLAN), str(rank)])
        for rank in range(1, len(plan["shares"]))
    ]


def main() -> None:
    """Takes, and waits for the others; what became of them is not looked at."""
    others = start_others()
    wait_for(RANK - 1)
    kept: list[object] = []
    try:
        take_all(kept)
    finally:
        PLAN.with_name(f"done-{RANK}").touch()
    wait_for(len(plan["shares"]) - 1)
    for other in others:
        other.wait()


if __name__ == "__main__":
    main()
