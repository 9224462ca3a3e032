"""A chain of equal layers, each of which keeps its output: the model of the textbooks."""

import argparse
import json

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--layers", type=int, default=64)
PARSER.add_argument("--segments", type=int, default=0, help="checkpointed ones; 0 for none")
ARGS = PARSER.parse_args()
UNIT = 64 * 2**20


def run(x: Tensor, layers: int) -> Tensor:
    for _ in range(layers):
        x = x.tanh()  # whose backward needs what it gave
    return x


def main() -> None:
    first = torch.zeros(UNIT // 4, device="cuda", requires_grad=True)
    x = first * 1
    if not ARGS.segments:
        x = run(x, ARGS.layers)
    for i in range(ARGS.segments):
        start, end = (ARGS.layers * place // ARGS.segments for place in (i, i + 1))
        x = checkpoint(run, x, end - start, use_reentrant=False)
    torch.cuda.reset_peak_memory_stats()
    x.sum().backward()
    peak = torch.cuda.max_memory_allocated() / UNIT - 1  # less the leaf, which nobody can let go
    print(json.dumps({"peak_units": round(peak, 2)}))


if __name__ == "__main__":
    main()
