"""How far `step()` of `torch.optim.SGD` has got, by the local variables of its frame.

SGD keeps the momentum of its first step in a list of its own until a group is done, and its fused
update moves no version counters. Its frame has both: the group that it is at, and that list. What
is finished is hidden, by taking the gradient away, and the rest of the step is run unchanged.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from ullage.act.guard.sharded.local_tensors import version_of

_MOMENTUM = "momentum_buffer"


@dataclass(frozen=True, slots=True)
class Finished:
    """Parameters that the step has updated to the end, and their momentum where it has one."""

    parameters: tuple[Any, ...] = ()
    momenta: tuple[Any, ...] = ()


def is_fused_sgd(optimizer: Any) -> bool:
    """True if updates move neither version counters nor a count of steps."""
    is_fused = any(group.get("fused") for group in optimizer.param_groups)
    return is_fused and type(optimizer) is torch.optim.SGD


def has_groups_of_one_kind(optimizer: Any) -> bool:
    """True if each group has one dtype and one device, so that one fused update does all of it."""
    return all(
        len({(each.dtype, each.device) for each in group["params"]}) == 1
        for group in optimizer.param_groups
    )


def read_finished(
    optimizer: Any, error: BaseException, code: CodeType, versions: Mapping[int, int]
) -> Finished | None:
    """The part of a failed step that SGD has finished; None if its frame does not say.

    Args:
        optimizer: of which `step()` has failed.
        error: what it raised, with its traceback.
        code: of its `step`.
        versions: the version counters of the parameters before, by their ids.
    """
    if type(optimizer) is not torch.optim.SGD:
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code is code]
    variables = dict(frames[0].f_locals) if len(frames) == 1 else {}
    current = variables.get("group")
    groups = optimizer.param_groups
    positions = [index for index, group in enumerate(groups) if group is current]
    if len(positions) != 1:
        return None
    updated = [
        (each, optimizer.state.get(each, {}).get(_MOMENTUM))
        for group in groups[: positions[0]]
        for each in group["params"]
        if each.grad is not None
    ]
    parameters = variables.get("params", ())
    momenta = variables.get("momentum_buffer_list") or [None] * len(parameters)
    if len(momenta) != len(parameters):
        return None
    # An update ends with one operation on the parameter; a fused one is not counted, nor begun.
    updated += [
        (each, momentum)
        for each, momentum in zip(parameters, momenta, strict=True)
        if version_of(each) == versions.get(id(each), version_of(each)) + 1
    ]
    has_momentum = [(each, group) for group in groups for each in group["params"]]
    needs = {id(each): group["momentum"] != 0 for each, group in has_momentum}
    if any(momentum is None and needs[id(each)] for each, momentum in updated):
        return None
    return Finished(tuple(each for each, _ in updated), tuple(momentum for _, momentum in updated))


@contextmanager
def hidden(optimizer: Any, finished: Finished) -> Iterator[None]:
    """Gives the state the momenta of finished parameters, which have no gradients within."""
    for parameter, momentum in zip(finished.parameters, finished.momenta, strict=True):
        if momentum is not None:
            optimizer.state[parameter][_MOMENTUM] = momentum
    gradients: Sequence[Any] = [parameter.grad for parameter in finished.parameters]
    try:
        for parameter in finished.parameters:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in zip(finished.parameters, gradients, strict=True):
            parameter.grad = gradient
