"""The state of a training before a step, from which the step can be run again.

Copied: the states of random number generators, buffers that a step changes, plain attributes of
modules, and the loss scale. Not copied: parameters; their version counters must not move.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch

from ullage.errors import GuardError

# Buffers up to here are always copied: kernels write to some without moving version counters.
_SMALL_BYTES = 1 << 20
_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (list, dict, set, deque)
_OTHER = object()


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
        self._random = _Random(parameters)
        self._buffers = _Buffers(model)
        self._attributes = _Attributes(model)
        self._scaler = None if scaler is None else _Scaler(scaler)
        self._extra = [_Extra(each) for each in extra]
        self._versions: list[int] = []

    def take(self) -> None:
        """Notes the state before a step."""
        self._versions = [parameter._version for parameter in self._parameters]
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

    def is_unscaled(self, optimizers: Sequence[Any]) -> bool | None:
        """Whether the step has divided the gradients by the loss scale; None: not known."""
        return None if self._scaler is None else self._scaler.is_unscaled(optimizers)

    def rewind(self) -> None:
        """Restores the state before the step.

        Raises:
            GuardError: the step has changed what it may not change; nothing is restored.
        """
        self._check_parameters()
        self._buffers.check()
        self._attributes.check()
        for each in self._extra:
            each.check()
        self._buffers.rewind()
        self._attributes.rewind()
        if self._scaler is not None:
            self._scaler.rewind()
        for each in self._extra:
            each.rewind()
        self._random.rewind()

    def _check_parameters(self) -> None:
        changed = [
            self._names.get(id(parameter), "a parameter of the optimizer")
            for parameter, version in zip(self._parameters, self._versions, strict=True)
            if parameter._version != version
        ]
        if changed:
            raise GuardError(
                f"{changed[0]!r} and {len(changed) - 1} more parameters were changed before the "
                "step ran out of memory; it cannot be run again"
            )


class _Random:
    """Generators of Python, NumPy, and torch on the host and the devices of the parameters."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        devices = {parameter.device for parameter in parameters}
        self._devices = sorted(each.index for each in devices if each.type == "cuda")
        self._python: Any = None
        self._numpy: Any = None
        self._host: Any = None
        self._on_devices: list[Any] = []

    def take(self) -> None:
        """Notes the states."""
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = None if numpy is None else numpy.random.get_state(legacy=False)
        self._host = torch.get_rng_state()
        self._on_devices = [torch.cuda.get_rng_state(index) for index in self._devices]

    def rewind(self) -> None:
        """Restores the states."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        torch.set_rng_state(self._host)
        for index, state in zip(self._devices, self._on_devices, strict=True):
            torch.cuda.set_rng_state(state, index)


class _Buffers:
    """The buffers of a model. Small ones and those of normalisation are copied before each step,
    and all before the first; of the others, those that an earlier step has changed.
    """

    def __init__(self, model: Any) -> None:
        self._modules = list(model.modules())
        self._sizes: list[int] = []
        self._places: list[tuple[dict[str, Any], str, Any]] = []
        self._buffers: list[tuple[str, Any]] = []
        self._versions: list[int] = []
        self._copies: dict[int, Any] = {}
        self._large: list[int] = []
        self._always: set[int] = set()

    def take(self) -> None:
        """Copies the buffers of which copies are made."""
        if not self._is_current():
            self._look()
        self._versions = [buffer._version for _, buffer in self._buffers]
        self._copy(back=False)

    def _is_current(self) -> bool:
        """Whether the model has the same buffers as before."""
        return self._sizes == [len(module._buffers) for module in self._modules] and all(
            [owner[name] is buffer for owner, name, buffer in self._places]  # noqa: C419
        )

    def _look(self) -> None:
        """Looks for the buffers, and makes room for copies of those that it has not met."""
        known = {id(buffer): self._copies.get(index)
                 for index, (_, buffer) in enumerate(self._buffers)}  # fmt: skip
        self._sizes = [len(module._buffers) for module in self._modules]
        self._places = [
            (module._buffers, name, buffer)
            for module in self._modules
            for name, buffer in module._buffers.items()
        ]
        buffers = {id(each): (name, each) for _, name, each in self._places if each is not None}
        self._buffers = [*buffers.values()]
        self._always = {id(each) for _, each in self._buffers if _num_bytes(each) <= _SMALL_BYTES}
        for module in self._modules:
            if hasattr(module, "track_running_stats"):
                self._always |= {id(each) for each in module._buffers.values()}
        self._large = [
            index for index, (_, each) in enumerate(self._buffers) if id(each) not in self._always
        ]
        self._copies = {}
        for index, (_, buffer) in enumerate(self._buffers):
            copy = known.get(id(buffer))
            if copy is not None or id(buffer) in self._always or id(buffer) not in known:
                self._copies[index] = torch.empty_like(buffer) if copy is None else copy

    def _copy(self, *, back: bool) -> None:
        """Copies buffers, or copies back into buffers, those of a device together."""
        pairs: dict[Any, tuple[list[Any], list[Any]]] = {}
        for index, copy in self._copies.items():
            copies, buffers = pairs.setdefault(copy.device, ([], []))
            copies.append(copy)
            buffers.append(self._buffers[index][1])
        with torch.no_grad():
            for copies, buffers in pairs.values():
                if back:
                    torch._foreach_copy_(buffers, copies)
                else:
                    torch._foreach_copy_(copies, buffers)

    def learn(self) -> None:
        """Frees the copies of large buffers that a step has not changed."""
        for index in self._large:
            buffer = self._buffers[index][1]
            if buffer._version != self._versions[index]:
                self._always.add(id(buffer))
            elif id(buffer) not in self._always:
                self._copies.pop(index, None)

    def check(self) -> None:
        """Raises GuardError if a buffer was changed of which there is no copy."""
        for index, (name, buffer) in enumerate(self._buffers):
            if index not in self._copies and buffer._version != self._versions[index]:
                self._always.add(id(buffer))
                raise GuardError(
                    f"the buffer {name!r} was changed by the step that ran out of memory, and by "
                    "none before it, so there is no copy of it; the step cannot be run again"
                )

    def rewind(self) -> None:
        """Puts the buffers back, and what was in them."""
        for module, size in zip(self._modules, self._sizes, strict=True):
            for name in [*module._buffers][size:]:
                del module._buffers[name]
        for owner, name, buffer in self._places:
            owner[name] = buffer
        self._copy(back=True)


def _num_bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


class _Attributes:
    """Attributes of modules that are not torch's own. Numbers and strings are restored, what was
    added is removed, and a list, dict or set must keep its length.
    """

    def __init__(self, model: Any) -> None:
        self._owners = [
            vars(module)
            for module in model.modules()
            if not type(module).__module__.startswith("torch.nn.")
        ]
        self._lengths: list[int] = []
        self._slots: list[tuple[dict[str, Any], str]] = []
        self._values: list[Any] = []
        self._containers: list[tuple[str, Any]] = []
        self._counts: list[int] = []

    def take(self) -> None:
        """Notes the attributes."""
        lengths = list(map(len, self._owners))
        if lengths != self._lengths:
            self._lengths = lengths
            self._look()
        # Others are not held: they may be activations.
        self._values = [
            value if isinstance(value := owner.get(name), _PLAIN) else _OTHER
            for owner, name in self._slots
        ]
        self._counts = [len(container) for _, container in self._containers]

    def _look(self) -> None:
        """Looks for attributes of the kinds that are followed."""
        torch_has = vars(torch.nn.Module()).keys() - {"training"}
        items = [
            (owner, name, value)
            for owner in self._owners
            for name, value in owner.items()
            if name not in torch_has
        ]
        self._slots = [(owner, name) for owner, name, value in items if isinstance(value, _PLAIN)]
        self._containers = [
            (name, value) for _, name, value in items if isinstance(value, _CONTAINERS)
        ]

    def check(self) -> None:
        """Raises GuardError if a list, dict or set has grown or shrunk."""
        for (name, container), count in zip(self._containers, self._counts, strict=True):
            if len(container) != count:
                raise GuardError(
                    f"the attribute {name!r} of a module was changed by the step that ran out of "
                    "memory; the step cannot be run again"
                )

    def rewind(self) -> None:
        """Restores numbers and strings, and removes what was added."""
        for owner, length in zip(self._owners, self._lengths, strict=True):
            for name in [*owner][length:]:
                del owner[name]
        for (owner, name), value in zip(self._slots, self._values, strict=True):
            if value is not _OTHER and owner.get(name) is not value:
                owner[name] = value


class _Scaler:
    """The loss scale, and what the scaler has noted of its optimizers."""

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
