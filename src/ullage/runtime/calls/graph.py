"""What a graph leads to: calls of models, and tensors that get a gradient."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ullage.runtime.calls.joint import record_of


@dataclass(frozen=True, slots=True)
class Reach:
    """What the graph of some tensors leads to.

    Attributes:
        records: of calls of models, in their order; what is behind them is not looked at.
        leaves: the tensors whose gradients are summed, but for those behind `records`.
        has_functions: whether there are functions of the program's own in between.
    """

    records: list[Any]
    leaves: list[Any]
    has_functions: bool


def look(tensors: Iterable[Any]) -> Reach:
    """Looks where the graph of some tensors leads."""
    tensors = [*tensors]
    record = record_of(tensors[0].grad_fn) if len(tensors) == 1 else None
    if record is not None:
        return Reach([record], [], has_functions=False)
    waiting = [each.grad_fn for each in tensors if each.grad_fn is not None]
    leaves = {id(each): each for each in tensors if each.grad_fn is None and each.requires_grad}
    records: dict[int, Any] = {}
    visited: set[Any] = set()
    has_functions = False
    while waiting:
        node = waiting.pop()
        if node in visited:
            continue
        visited.add(node)
        record = record_of(node)
        if record is not None:
            records[id(record)] = record
            continue
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor) and not node.next_functions:
            leaves[id(variable)] = variable
        has_functions = has_functions or isinstance(node, torch.autograd.function.BackwardCFunction)
        waiting += [following for following, _ in node.next_functions if following is not None]
    ordered = sorted(records.values(), key=lambda each: each.number)
    return Reach(ordered, [*leaves.values()], has_functions)
