"""What a program's own tools see of small operations on a device: the same everywhere.

Prints, by tool, what it saw. Device: the GPU, where there is one.
"""

from __future__ import annotations

import collections
import json
import sys
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class SeenOperations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


class SeenFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def work(x: torch.Tensor) -> int:
    """Operations of each kind that is followed: made, computed, compared, chosen, drawn, read."""
    ones = torch.ones(4, device=x.device) * 2
    mask = (x > 1) & (ones == 2)
    order = torch.where(mask, x, 0.0).argsort()
    total = torch.arange(4, device=x.device).index_add(0, order, order).sum()
    chosen = x[mask]
    x.clone().copy_(ones).add_(1).clamp_(max=torch.tensor(3.0, device=x.device))
    torch.nn.init.normal_(torch.empty(4, device=x.device))
    return int(total.item()) + chosen.numel()


def trace(x: torch.Tensor, *, is_early: bool) -> list[str]:
    graph = make_fx(lambda a, b: (a + b) * 2 > 1, pre_dispatch=is_early)(x, x).graph
    return [str(node.target) for node in graph.nodes]


def profile(x: torch.Tensor, **options: Any) -> dict[str, int]:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], **options
    ) as seen:
        work(x)
    return dict(sorted(collections.Counter(
        event.name for event in seen.events() if event.name.startswith("aten::")
    ).items()))  # fmt: skip


def memory(x: torch.Tensor) -> list[int]:
    """CPU bytes that PyTorch's memory profiler counts, by operation."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as seen:
        work(x)
    return sorted(event.cpu_memory_usage for event in seen.events() if event.cpu_memory_usage)


def main() -> None:
    x = torch.tensor([0.5, 1.5, 2.5, 3.5]).to(DEVICE)
    seen: dict[str, Any] = {"value": work(x)}
    with SeenOperations() as mode:
        work(x)
    seen["operations"] = mode.names
    with SeenFunctions() as functions:
        work(x)
    seen["functions"] = functions.names
    seen["trace"] = trace(x, is_early=False)
    seen["early trace"] = trace(x, is_early=True)
    seen["profile"] = profile(x)
    seen["profile of shapes"] = profile(x, record_shapes=True)
    seen["memory"] = memory(x)
    seen["profile of the processor"] = profile(x.cpu())
    graph_input = torch.rand(4, requires_grad=True, device=DEVICE)
    loss = ((graph_input * 2).clamp_min(0.0) + 1).sum()
    nodes, node = [], loss.grad_fn
    while node is not None:
        nodes.append(type(node).__name__)
        node = node.next_functions[0][0] if node.next_functions else None
    seen["nodes"] = nodes
    print(json.dumps(seen))


if __name__ == "__main__":
    sys.exit(main())
