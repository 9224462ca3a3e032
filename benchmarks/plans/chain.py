"""Backward through a chain of equal layers, each of which keeps its output, in given segments.

    chain.py "[[], [8, 8], [6, 5, 3, 2]]"

Prints for each list of lengths the peak in units of a layer's output, and how many layers ran.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

UNIT = 64 * 2**20
NUM_RUN = [0]


def run(x: Tensor, layers: int) -> Tensor:
    """Some layers."""
    for _ in range(layers):
        NUM_RUN[0] += 1
        x = x.tanh()  # whose backward needs what it gave
    return x


def measure(layers: int, lengths: Sequence[int]) -> dict[str, float]:
    """One chain, forward and backward; no lengths: nothing is checkpointed."""
    NUM_RUN[0] = 0
    first = torch.zeros(UNIT // 4, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    x = first * 1
    x = run(x, layers) if not lengths else x
    for length in lengths:
        x = checkpoint(run, x, length, use_reentrant=False)
    # The product's gradient is a tensor, where that of a sum alone takes no memory; and the output
    # is not held while backward runs.
    loss = (x * 1).sum()
    del x
    loss.backward()
    peak = torch.cuda.max_memory_allocated() - before
    return {"peak_units": round(peak / UNIT, 2), "layers_run": NUM_RUN[0]}


def main() -> None:
    """All of them, one line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layers", type=int)
    parser.add_argument("segmentations")
    args = parser.parse_args()
    for lengths in json.loads(args.segmentations):
        print(json.dumps(measure(args.layers, lengths)), flush=True)


if __name__ == "__main__":
    main()
