"""The state of a training before a step, from which the step can be run again.

Copied: the states of random number generators, buffers that a step changes, plain attributes of
modules, and the loss scale. Not copied: parameters; their version counters must not move.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch

from ullage.errors import GuardError
from ullage.runtime.calls.module_state import Attributes, Buffers
from ullage.runtime.reads.counters import Counters, Flags
from ullage.runtime.state.generators import RandomStates


class Snapshot:
    """What is noted before each step, and restored after one that failed.

    Args:
        model: the `nn.Module`.
        parameters: of the model and the optimizers.
        scaler: a `torch.amp.GradScaler`, or None.
        extra: objects with `state_dict` and `load_state_dict`.
    """

    def __init__(
        self, model: Any, parameters: Sequence[Any], scaler: Any, extra: Sequence[Any]
    ) -> None:
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._parameters = parameters
        self._random = RandomStates(parameters)
        self._buffers = Buffers(model)
        self._attributes = Attributes(model)
        self._scaler = None if scaler is None else _Scaler(scaler)
        self._extra = [_Extra(each) for each in extra]
        self._counters = Counters(parameters)
        self._versions: Sequence[int] = ()
        self._flags = Flags(parameters)
        self._requires_grad: Sequence[bool | int] = ()

    def take(self) -> None:
        """Notes the state before a step."""
        self._versions = self._counters.read()
        self._requires_grad = self._flags.read_requires_grad()
        self._random.take()
        self._buffers.take()
        self._attributes.take()
        if self._scaler is not None:
            self._scaler.take()
        for each in self._extra:
            each.take()

    def learn(self) -> None:
        """After a step that succeeded: which large buffers it has changed."""
        self._buffers.learn()

    def has_drawn(self) -> bool:
        """Whether the step has drawn from one of torch's generators."""
        return self._random.have_moved()

    def is_unscaled(self, optimizers: Sequence[Any]) -> bool | None:
        """Whether the step has divided the gradients by the loss scale; None: not known."""
        return None if self._scaler is None else self._scaler.is_unscaled(optimizers)

    def rewind(self, *, are_tensors_back: bool = False, keeps_new: bool = False) -> None:
        """Restores the state before the step.

        Args:
            are_tensors_back: whether parameters and buffers were restored by other means.
            keeps_new: whether attributes and buffers that were added since stay, as those of
                another plan.

        Raises:
            GuardError: the step has changed what it may not change; nothing is restored.
        """
        if not are_tensors_back:
            self._check_parameters()
            self._buffers.check()
        self._attributes.check()
        for each in self._extra:
            each.check()
        for parameter, value in zip(self._parameters, self._requires_grad, strict=True):
            if parameter.requires_grad != value:
                parameter.requires_grad_(bool(value))
        self._buffers.rewind(keeps_new=keeps_new)
        self._attributes.rewind(keeps_new=keeps_new)
        if self._scaler is not None:
            self._scaler.rewind()
        for each in self._extra:
            each.rewind()
        self._random.rewind()

    def _check_parameters(self) -> None:
        self._counters.check()
        changed = [
            self._names.get(id(parameter), "a parameter of the optimizer")
            for parameter, version in zip(self._parameters, self._versions, strict=True)
            if parameter._version != version
        ]
        if changed:
            raise GuardError(
                f"{', '.join(map(repr, changed[:3]))} and {len(changed[3:])} more parameters were "
                "changed before the step ran out of memory; it cannot be run again"
            )


class _Scaler:
    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler
        self._tensors: tuple[Any, Any] = (None, None)
        self._copies: list[Any] = []
        self._stages: Any = None

    def take(self) -> None:
        """Copies the scale."""
        scaler = self._scaler
        self._stages = dict(scaler._per_optimizer_states)
        tensors = (scaler._scale, scaler._growth_tracker)
        if tensors[0] is not self._tensors[0] or tensors[1] is not self._tensors[1]:
            self._tensors = tensors
            self._copies = [torch.empty_like(each) for each in tensors if each is not None]
        for copy, tensor in zip(self._copies, tensors, strict=False):
            copy.copy_(tensor)

    def is_unscaled(self, optimizers: Sequence[Any]) -> bool | None:
        """Whether the scaler has divided gradients since the step began; None: some of them."""
        states = self._scaler._per_optimizer_states
        stages = {states[id(each)]["stage"] for each in optimizers if id(each) in states}
        names = {stage.name for stage in stages}
        return False if names <= {"READY"} else True if names == {"UNSCALED"} else None

    def rewind(self) -> None:
        """Restores the scale."""
        scaler = self._scaler
        stages = scaler._per_optimizer_states
        stages.clear()
        stages.update(self._stages)
        scaler._scale, scaler._growth_tracker = self._tensors
        for copy, tensor in zip(self._copies, self._tensors, strict=False):
            tensor.copy_(copy)


class _Extra:
    """An object with `state_dict` and `load_state_dict`: its tensors must not change, all else is
    restored.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._state: Any = None
        self._tensors: list[tuple[str, Any, int]] = []

    def take(self) -> None:
        """Notes the state."""
        state = self._owner.state_dict()
        self._tensors = [(name, each, each._version) for name, each in _tensors_of(state)]
        # Tensors stay themselves in the copy.
        self._state = deepcopy(state, {id(each): each for _, each, _ in self._tensors})

    def check(self) -> None:
        """Raises GuardError if a tensor of it was changed or replaced."""
        now = dict(_tensors_of(self._owner.state_dict()))
        for name, tensor, version in self._tensors:
            current = now.get(name)
            is_same = current is not None and _is_same_memory(current, tensor)
            if not is_same or tensor._version != version:
                raise GuardError(
                    f"{name!r} of a {type(self._owner).__name__} was changed before the step ran "
                    "out of memory; the step cannot be run again"
                )

    def rewind(self) -> None:
        """Restores all but tensors."""
        if not _is_equal(self._state, self._owner.state_dict()):
            self._owner.load_state_dict(self._state)


def _tensors_of(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, element in value.items():
            yield from _tensors_of(element, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for index, element in enumerate(value):
            yield from _tensors_of(element, f"{name}.{index}".lstrip("."))


def _is_same_memory(tensor: Any, other: Any) -> bool:
    return bool(tensor.data_ptr() == other.data_ptr() and tensor.shape == other.shape)


def _is_equal(value: Any, other: Any) -> bool:
    """Whether two states are equal but for the values of tensors."""
    if isinstance(value, torch.Tensor):
        return isinstance(other, torch.Tensor)
    if isinstance(value, Mapping):
        return (
            isinstance(other, Mapping)
            and value.keys() == other.keys()
            and all(_is_equal(element, other[key]) for key, element in value.items())
        )
    if isinstance(value, list | tuple):
        return (
            isinstance(other, list | tuple)
            and len(value) == len(other)
            and all(map(_is_equal, value, other))
        )
    return bool(value == other)
