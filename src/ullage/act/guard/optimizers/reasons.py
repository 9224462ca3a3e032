"""Why a step of an optimizer that has failed half-way cannot be finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from ullage.act.guard.optimizers.sgd_step import has_groups_of_one_kind, is_fused_sgd
from ullage.act.guard.sharded.local_tensors import is_followed
from ullage.ground.errors import GuardError

SILENT = "a fused SGD of several dtypes or devices in a group does not show how far it has got"


def check_counters(parameters: Sequence[Any]) -> None:
    """Raises GuardError if operations on lists do not move version counters here, as within some
    modes of torch.
    """
    for device in {parameter.device for parameter in parameters}:
        tensors = [torch.ones(1, device=device)]
        with torch.no_grad():
            torch._foreach_add_(tensors, 1.0)
        if tensors[0]._version != 1:
            raise GuardError(
                "the optimizer's step ran out of memory within a TorchDispatchMode, which hides "
                "how far it has got"
            )


def why_not(optimizer: Any) -> str | None:
    """Why a step of an optimizer that fails half-way cannot be finished."""
    kinds = type(optimizer).__mro__
    own = kinds[: kinds.index(Optimizer)] if Optimizer in kinds else kinds
    if Optimizer not in kinds or not all(
        f"{k.__module__}.".startswith("torch.optim.") for k in own
    ):
        return f"{name_of(optimizer)} is not one of torch.optim, so its step is not finished"
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    if not all(map(is_followed, parameters)):
        return f"{name_of(optimizer)} has shards of an unusual kind, so its step is not finished"
    if is_fused_sgd(optimizer) and not has_groups_of_one_kind(optimizer):
        return SILENT
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"{name_of(optimizer)} is differentiable, so its step is not finished"
    return None


def name_of(optimizer: Any) -> str:
    """The kind of an optimizer, in messages."""
    return type(optimizer).__name__
