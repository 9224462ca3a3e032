"""How far a failed try has got, by version counters: which in-place operations were executed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn
from weakref import ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ullage.act.guard.call import Key, memory_key
from ullage.act.guard.sharded.local_tensors import part_of
from ullage.ground.errors import GuardError


class Entry:
    """A tensor: how many in-place operations it has had, and how many were met again since."""

    __slots__ = ("_tensor", "bounds", "executed", "met", "was_left_out")

    def __init__(self, tensor: Any, executed: int) -> None:
        # Not held: where the step frees a gradient, its memory is free.
        self._tensor = ref(tensor)
        self.bounds = _bounds_of(tensor)
        self.executed = executed
        self.met = 0
        self.was_left_out = False

    @property
    def tensor(self) -> Any:
        """The tensor; None once it is freed."""
        return self._tensor()

    def leave_out(self) -> None:
        """Counts an operation that was executed in the failed try."""
        self.met += 1
        self.was_left_out = True


class Progress:
    """Which in-place operations on some tensors have been executed.

    Attributes:
        has_gone_on: whether an operation has been done that the failed try had not reached.
        is_unscaled: whether the failed try has divided gradients by the loss scale, which no
            version counter shows; None: not known.
    """

    def __init__(self) -> None:
        self._entries: dict[Key, list[Entry]] = {}
        self._is_shared: set[Key] = set()
        # With what tells whether the memory is still that value's: where it was freed, the next
        # tensor that has its address is another.
        self._lost: dict[Key, StorageWeakRef | None] = {}
        self._absent: set[Key] = set()
        self.has_gone_on = False
        self.is_unscaled: bool | None = None

    def add(self, tensor: Any, executed: int) -> None:
        """Adds a tensor that has had this many in-place operations in the failed try.

        Raises:
            GuardError: it shares its memory with another.
        """
        part = part_of(tensor)
        if not part.numel():
            return
        key, entry = memory_key(part), Entry(part, executed)
        entries = self._entries.setdefault(key, [])
        if any(_overlap(entry.bounds, other.bounds) for other in entries):
            raise GuardError(
                "two of the parameters, gradients or optimizer states share memory; the guard "
                "cannot tell what was done to which"
            )
        entries.append(entry)
        if len(entries) > 1:
            self._is_shared.add(key)
            # Views of one tensor have one counter.
            if any(each.executed for each in entries):
                raise GuardError(
                    "gradients that lie in one tensor were changed in place, and their common "
                    "version counter does not say which"
                )

    def add_absent(self, tensor: Any) -> None:
        """Adds a stand-in for a tensor that is gone: whatever uses it is refused."""
        self._absent.add(memory_key(tensor))

    def begin(self) -> None:
        """Begins another run of the same operations."""
        self.has_gone_on = False
        self._lost.clear()
        for entry in self._all():
            entry.met = 0

    @property
    def is_untouched(self) -> bool:
        """True if none of the tensors has had an operation."""
        return not any(entry.executed for entry in self._all())

    def go_on(self, entry: Entry) -> None:
        """Counts an operation that was done now."""
        self.has_gone_on = True
        entry.executed += 1
        entry.met += 1
        entry.was_left_out = False

    def find(self, tensor: Any) -> Entry | None:
        """The entry of a tensor or of what it is a view of.

        Raises:
            GuardError: the tensor has parts of several.
        """
        key = memory_key(tensor)
        entries = self._entries.get(key)
        if entries is None:
            return None
        if all(entry.tensor is None for entry in entries):
            del self._entries[key]  # its memory is another tensor's now
            return None
        if key not in self._is_shared:
            return entries[0]
        # FSDP2 cuts gradients from what one collective gives.
        bounds = _bounds_of(tensor)
        entries = [entry for entry in entries if _overlap(entry.bounds, bounds)]
        if len(entries) > 1:
            raise GuardError("the step uses several gradients by one tensor, which is not followed")
        return entries[0] if entries and entries[0].tensor is not None else None

    def _all(self) -> list[Entry]:
        return [entry for entries in self._entries.values() for entry in entries]

    def is_lost(self, tensor: Any) -> bool:
        """True if the value that a tensor had at this point is not there any more."""
        key = memory_key(tensor)
        if key in self._absent:
            raise GuardError(
                "the step uses a gradient that it has freed before it ran out of memory; it "
                "cannot be run again"
            )
        entry = self.find(tensor)
        return self._is_noted(key) or (entry is not None and entry.executed > entry.met)

    def are_lost(self, tensors: Iterable[Any]) -> bool:
        """True if one of some values is lost; all of them are looked at."""
        return any([self.is_lost(tensor) for tensor in tensors])  # noqa: C419

    def mark(self, tensor: Any, *, is_lost: bool) -> None:
        """Notes whether the value of a tensor is lost."""
        key = memory_key(tensor)
        if not is_lost:
            self._lost.pop(key, None)
            return
        is_strided = tensor.layout is torch.strided
        self._lost[key] = StorageWeakRef(part_of(tensor).untyped_storage()) if is_strided else None

    def _is_noted(self, key: Key) -> bool:
        """True if the value in some memory was noted as lost, and is still there."""
        reference = self._lost.get(key)
        if reference is not None and reference.expired():
            del self._lost[key]
        return key in self._lost

    def check(self, results: Iterable[Any] = ()) -> None:
        """Raises GuardError if the second run did other things than the first, or one of the
        results is lost.
        """
        entries = [entry for entry in self._all() if entry.tensor is not None]
        if any(entry.executed > entry.met for entry in entries):
            raise GuardError("the second run of the step left out what the first had done")
        if any(self._is_noted(memory_key(tensor)) for tensor in results):
            refuse_lost()


def refuse_lost() -> NoReturn:
    """Raises GuardError: a value of the failed try is needed and gone."""
    raise GuardError(
        "a value that was computed before the error is needed, and cannot be computed again"
    )


def _bounds_of(tensor: Any) -> tuple[int, int]:
    """The addresses between which a tensor lies."""
    if tensor.layout is not torch.strided:
        return (0, 1)
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    begin = tensor.data_ptr()
    return (begin, begin + (last + 1) * tensor.element_size())


def _overlap(bounds: tuple[int, int], others: tuple[int, int]) -> bool:
    return bounds[0] < others[1] and others[0] < bounds[1]
