"""Profiles a step of a small network on the CPU; its last line is JSON: the operations and the
memory that the profile shows, in its order, each with how deep it lies. No operation has a number
where it takes a tensor: of those a profile shows no parts.

The targets are as large as what ullage fills only when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import profile

SHOWN = (_EventType.Allocation, _EventType.TorchOp)


def walk(events: list[Any], depth: int = 0) -> Iterator[tuple[int, str, int]]:
    """The events of a tree, each with its bytes."""
    for event in events:
        if event.tag in SHOWN:
            yield depth, event.name, getattr(event.extra_fields, "alloc_size", 0)
        yield from walk(event.children, depth + (event.tag == _EventType.TorchOp))


def main() -> None:
    """A step of two layers."""
    layers = torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512, bias=False)
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), foreach=False)
    with profile(profile_memory=True, record_shapes=True) as seen:
        targets = torch.ones(1024, 512)
        loss = torch.nn.functional.mse_loss(model(torch.ones(1024, 64)), targets)
        loss.backward()
        torch.zeros_like(model[0].weight)
        optimizer.step()
        optimizer.zero_grad()
    results = seen.profiler.kineto_results
    print(json.dumps(list(walk(results.experimental_event_tree()))))


if __name__ == "__main__":
    main()
