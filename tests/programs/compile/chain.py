"""A chain of blocks, each two products with a tanh between, compiled as one, block by block or not
at all, and counted: chain.py DIRECTORY HOW BUDGET ...

DIRECTORY is that of counted.py. Its last line is JSON: for each budget the products (multiplied and
added up) of the last step, and how many graphs were compiled.
"""

import json
import sys

import torch
import torch._functorch.config as partitioning
from torch import nn

sys.path.insert(0, sys.argv[1])
from counted import Counted

BLOCKS, BATCH, WIDTH = 4, 64, 256
PRODUCT = 2 * BATCH * WIDTH * WIDTH


def measure(how: str, budget: float) -> dict[str, float]:
    """Two steps under a budget."""
    torch._dynamo.reset()
    partitioning.activation_memory_budget = budget
    counted = Counted()
    model = nn.Sequential(
        *(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
            for _ in range(BLOCKS)
        )
    ).cuda()
    for one in {"blocks": model, "whole": [model], "nothing": []}[how]:
        one.compile(backend=counted.compile)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.zeros(BATCH, WIDTH, device="cuda").requires_grad_()
    for _ in range(2):
        counted.begin_step()
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    flops = sum(flops * num for _, _, flops, _, num in counted.operations())
    return {"products": flops / PRODUCT, "graphs": counted.num_graphs}


if __name__ == "__main__":
    print(json.dumps([measure(sys.argv[2], float(budget)) for budget in sys.argv[3:]]))
