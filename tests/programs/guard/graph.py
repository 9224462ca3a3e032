"""A step that fails in a program with a CUDA graph, and after the graph is gone.

graph.py SOURCE_OF_ULLAGE
"""

import json
import sys

import torch
from torch import nn
from training import unseen

sys.path.insert(0, sys.argv[1])
import ullage


def main():
    """Runs both, and prints."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8)) for _ in range(3))).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    buffer = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        buffer += 1
    machine = unseen(errors=1)

    def step():
        loss = model(torch.ones(4, 8, device="cuda")).sum()
        if machine.errors:
            machine.errors -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        loss.backward()
        optimizer.step()

    document = {}
    with ullage.guard(model, optimizer) as guard:
        try:
            guard.step(step)
        except ullage.GuardError as error:
            document["answer"] = f"GuardError: {error}"
        del graph
        machine.errors = 1
        guard.step(step)
        document["without"] = guard.num_recoveries
    print(json.dumps(document))


if __name__ == "__main__":
    main()
