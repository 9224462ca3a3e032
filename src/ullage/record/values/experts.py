"""Decides whether a topk belongs to a router: it runs in the forward of a module with experts.

Other code uses topk on scores of the same shapes: accuracy(topk=(1, 5)), nearest neighbours,
proposals of a detector. A router runs in its layer's forward, and the layer, or the router itself,
has the experts: a list of modules, or weights of three dimensions of which the first is the expert.
On a rank of an expert-parallel job it has an equal part of them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

from ullage.record import library

_MAX_HOLDERS = 3
"""The number of modules to check: the router, the layer of experts, and a wrapper between them."""


def is_routing(torch: ModuleType, num_experts: int) -> bool:
    """True if the current call is within the forward of a module with this many experts."""
    if library.current_scope() < 0:
        return False
    holders = itertools.islice(_running_modules(torch), _MAX_HOLDERS)
    return any(_has_experts(torch, holder, num_experts) for holder in holders)


def _running_modules(torch: ModuleType) -> Iterator[Any]:
    """The modules whose methods are running, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    last = None
    while frame is not None:
        owner = frame.f_locals.get("self")
        if owner is not last and isinstance(owner, torch.nn.Module):
            yield owner
            last = owner
        frame = frame.f_back


def _has_experts(torch: ModuleType, holder: Any, num_experts: int) -> bool:
    for module in holder.modules():
        if isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            if _is_part(torch, len(module), num_experts):
                return True
        elif not isinstance(module, torch.nn.modules.conv._ConvNd):
            for weight in module.parameters(recurse=False):
                if weight.dim() > 2 and _is_part(torch, weight.size(0), num_experts):
                    return True
    return False


def _is_part(torch: ModuleType, count: int, num_experts: int) -> bool:
    """True if `count` is the number of experts, or that of one rank in a distributed job."""
    distributed = torch.distributed
    is_job = distributed.is_available() and distributed.is_initialized()
    return count == num_experts or (is_job and count > 1 and num_experts % count == 0)
