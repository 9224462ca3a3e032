"""What the modules of a model hold besides parameters: buffers, and attributes of their own."""

from __future__ import annotations

from collections import deque
from operator import itemgetter
from typing import Any

import torch

from ullage.errors import GuardError

# Buffers up to here are always copied: kernels write to some without moving version counters.
_SMALL_BYTES = 1 << 20
_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (list, dict, set, deque)
_OTHER = object()
_BUFFERS, _TRAINING = itemgetter("_buffers"), itemgetter("training")


class Buffers:
    """The buffers of a model. Small ones and those of normalisation are copied before each step,
    and all before the first; of the others, those that an earlier step has changed.
    """

    def __init__(self, model: Any) -> None:
        self._modules = list(model.modules())
        self._all = [*map(vars, self._modules)]
        self._sizes: list[int] = []
        self._places: list[tuple[dict[str, Any], str, Any]] = []
        self._buffers: list[tuple[str, Any]] = []
        self._versions: list[int] = []
        self._copies: dict[int, Any] = {}
        self._large: list[int] = []
        self._always: set[int] = set()
        self._written: set[int] = set()

    def take(self) -> None:
        """Copies the buffers of which copies are made."""
        if not self._is_current():
            self._look()
        self._versions = [buffer._version for _, buffer in self._buffers]
        self._copy(back=False)

    def _is_current(self) -> bool:
        """Whether the model has the same buffers as before."""
        return self._sizes == [*map(len, map(_BUFFERS, self._all))] and all(
            [owner[name] is buffer for owner, name, buffer in self._places]  # noqa: C419
        )

    def _look(self) -> None:
        """Looks for the buffers, and makes room for copies of those that it has not met."""
        known = {id(buffer): self._copies.get(index)
                 for index, (_, buffer) in enumerate(self._buffers)}  # fmt: skip
        self._sizes = [*map(len, map(_BUFFERS, self._all))]
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
            is_copied = id(buffer) in self._always | self._written or id(buffer) not in known
            if copy is not None or is_copied:
                self._copies[index] = torch.empty_like(buffer) if copy is None else copy

    def _copy(self, *, back: bool) -> None:
        """Copies buffers, or copies back into buffers, those of a device together."""
        if not self._copies:
            return
        pairs: dict[Any, tuple[list[Any], list[Any]]] = {}
        for index, copy in self._copies.items():
            copies, buffers = pairs.setdefault(copy.device, ([], []))
            copies.append(copy)
            buffers.append(self._buffers[index][1])
        with torch.no_grad():
            for copies, buffers in pairs.values():
                if back:
                    # Past version counters: graphs of earlier calls may have saved the buffers.
                    torch._foreach_copy_([buffer.data for buffer in buffers], copies)
                else:
                    torch._foreach_copy_(copies, buffers)

    def learn(self) -> None:
        """Frees the copies of large buffers that a step has not changed."""
        for index in self._large:
            buffer = self._buffers[index][1]
            if buffer._version != self._versions[index]:
                self._note_written(index, buffer)
            elif id(buffer) not in self._written:
                self._copies.pop(index, None)

    def _note_written(self, index: int, buffer: Any) -> None:
        """From the next step on there is a copy of a large buffer."""
        self._written.add(id(buffer))
        if index not in self._copies:
            self._sizes = []

    def check(self) -> None:
        """Raises GuardError if a buffer was changed of which there is no copy."""
        for index, (name, buffer) in enumerate(self._buffers):
            if index not in self._copies and buffer._version != self._versions[index]:
                self._note_written(index, buffer)
                raise GuardError(
                    f"the buffer {name!r} was changed by the step that ran out of memory, and by "
                    "none before it, so there is no copy of it; the step cannot be run again"
                )

    def rewind(self, *, keeps_new: bool = False) -> None:
        """Puts the buffers back, and what was in them."""
        if not keeps_new:
            for module, size in zip(self._modules, self._sizes, strict=True):
                for name in [*module._buffers][size:]:
                    del module._buffers[name]
        for owner, name, buffer in self._places:
            owner[name] = buffer
        self._copy(back=True)


def _num_bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


class Attributes:
    """Attributes of modules: of all, whether they train. Of those that are not torch's own, numbers
    and strings are restored, what was added is removed, and a list, dict or set must keep its
    length.
    """

    def __init__(self, model: Any) -> None:
        self._owners = [
            vars(module)
            for module in model.modules()
            if not type(module).__module__.startswith("torch.nn.")
        ]
        # The wrapper of a compiled model has its model's flag.
        self._all = [vars(module) for module in model.modules() if "training" in vars(module)]
        self._training: list[bool] = []
        self._lengths: list[int] = []
        self._slots: list[tuple[dict[str, Any], str]] = []
        self._values: list[Any] = []
        self._containers: list[tuple[str, Any]] = []
        self._counts: list[int] = []

    def take(self) -> None:
        """Notes the attributes."""
        self._training = [*map(_TRAINING, self._all)]
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

    def rewind(self, *, keeps_new: bool = False) -> None:
        """Restores numbers and strings, and removes what was added."""
        for owner, is_training in zip(self._all, self._training, strict=True):
            owner["training"] = is_training
        if not keeps_new:
            for owner, length in zip(self._owners, self._lengths, strict=True):
                for name in [*owner][length:]:
                    del owner[name]
        for (owner, name), value in zip(self._slots, self._values, strict=True):
            if value is not _OTHER and owner.get(name) is not value:
                owner[name] = value
