"""Copies on the host of all that a training step changes, so that steps can be tried and undone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import torch

from ullage.act.guard.failure import release
from ullage.act.guard.host.host_memory import find_room
from ullage.act.guard.state.state import State
from ullage.ground.errors import GuardError
from ullage.ground.units import format_bytes


class KeptState:
    """Parameters, buffers and optimizer states, copied to the host; generators, attributes, the
    loss scale and what else a step can change. Gradients are dropped: there may be none before.

    Args:
        model: the `nn.Module`.
        optimizers: of its parameters.
        state: what else a step can change, as a guard notes it.

    Raises:
        GuardError: there are gradients, or the host has no memory for the copies.
    """

    def __init__(self, model: Any, optimizers: Sequence[Any], state: State) -> None:
        self._optimizers, self._state = optimizers, state
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        trained = [parameter for group in groups for parameter in group["params"]]
        self._parameters = [*{id(each): each for each in [*model.parameters(), *trained]}.values()]
        if any(parameter.grad is not None for parameter in self._parameters):
            raise GuardError(
                "there are gradients of an earlier micro-batch, which trying batches would drop; "
                "call optimizer.zero_grad() before"
            )
        self._states = [
            {parameter: dict(state) for parameter, state in optimizer.state.items()}
            for optimizer in optimizers
        ]
        self._groups = [[copy(group) for group in each.param_groups] for each in optimizers]
        tensors = [*self._parameters, *model.buffers(), *self._state_tensors()]
        self._tensors = [*{id(tensor): tensor for tensor in tensors}.values()]
        _check_room(self._tensors)
        self._copies = [tensor.detach().to("cpu", copy=True) for tensor in self._tensors]
        state.take(None, (), {})

    def _state_tensors(self) -> Iterator[Any]:
        for states in self._states:
            for state in states.values():
                yield from (value for value in state.values() if isinstance(value, torch.Tensor))

    def restore(self) -> None:
        """Puts everything back, and gives back what trying has left in the allocator's cache."""
        for parameter in self._parameters:
            parameter.grad = None
        pairs = zip(self._optimizers, self._states, self._groups, strict=True)
        for optimizer, states, groups in pairs:
            optimizer.state.clear()
            optimizer.state.update({each: dict(state) for each, state in states.items()})
            for group, before in zip(optimizer.param_groups, groups, strict=True):
                group.update(before)
        with torch.no_grad():
            for tensor, copied in zip(self._tensors, self._copies, strict=True):
                tensor.copy_(copied)
        self._state.restore(self._tensors)
        release(torch)


def _check_room(tensors: Sequence[Any]) -> None:
    """Raises GuardError where the copies would not fit into the memory of the host."""
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    room = find_room()
    if needed > room.free_bytes:
        raise GuardError(
            f"copies of the model and the optimizer take {format_bytes(needed)} of the host's "
            f"memory, and {room.text}"
        )
