"""The tensors that a step can change: version counters of all, and copies of those that are small.

Parameters of the optimizers and their states are not copied: a step that ran out of memory has not
changed them, or is finished (optimizers/). Of other tensors the small ones are copied before each
step, as some kernels, and whoever writes to `tensor.data`, move no version counter. A larger one is
copied before the first step that finds it, and later if a step has changed it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ullage.act.guard.reads.counters import Counters
from ullage.act.guard.sharded.local_tensors import version_of
from ullage.act.guard.state.kinds import SMALL_BYTES
from ullage.ground.protocol.variables import PHANTOM

# All copies on one device take at most this.
MOST_BYTES = 64 << 20
# Of a large tensor without a copy, so many elements are compared.
_NUM_SAMPLED = 32
_KEPT = "a parameter or a state of an optimizer, of which there is no copy"
# So many tensors that stay are read one by one; more are read together.
_MOST_SINGLE = 8


class Entry:
    """A tensor that is reached.

    Attributes:
        tensor: is held.
        place: who refers to it.
        is_kept: whether it is a parameter of an optimizer or a state of it.
        num_parents: how many objects refer to it.
        version, address: its counter and where it lies, as they were noted.
        view, copy: what is copied, all of it or a few elements, and the copy.
        index: its place among those whose counters are read together.
        gradient: of a leaf that no optimizer of the guard has, its counter, and a copy.
        was_written: whether a step has changed it.
        copies_first: whether a large one is copied before the first step that finds it.
    """

    __slots__ = (
        "address", "copies_first", "copy", "gradient", "index", "is_kept", "num_bytes",
        "num_parents", "place", "requires_grad", "shape", "tensor", "version", "view",
        "was_written",
    )  # fmt: skip

    def __init__(self, tensor: Any, place: Any, *, is_kept: bool) -> None:
        self.tensor, self.place, self.is_kept = tensor, place, is_kept
        self.num_parents = 0
        self.num_bytes = int(tensor.numel() * tensor.element_size())
        self.shape = tensor.shape
        self.requires_grad = tensor.requires_grad
        self.version: int | None = None
        self.index: int | None = None
        self.address = 0
        self.view: Any = None
        self.copy: Any = None
        self.was_written = False
        self.copies_first = True
        self.gradient: tuple[Any, int, Any] = (None, 0, None)

    @property
    def is_whole(self) -> bool:
        """True if there is a copy of all of it."""
        return self.view is self.tensor

    def read(self) -> None:
        """Notes its counter, its address, and whether it requires a gradient."""
        self.version = None if self.tensor.is_inference() else version_of(self.tensor)
        self.requires_grad = self.tensor.requires_grad
        if _has_address(self.tensor):
            self.address = self.tensor.data_ptr()


class Tensors:
    """The tensors that are reached, each once."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._single: dict[int, Entry] = {}
        self._together: list[Entry] = []
        self._counters = Counters(())
        self._versions: Any = ()
        self._groups: list[tuple[list[Any], list[Any]]] = []
        self._large: dict[int, Entry] = {}
        self._leaves: dict[int, Entry] = {}
        self._is_stale = False
        self.num_bytes: dict[Any, int] = {}

    def enter(
        self, tensor: Any, place: Any, *, is_kept: bool, is_cold: bool, is_batch: bool
    ) -> Entry:
        """One more object refers to a tensor; a cold one is noted now, and not again, and a large
        one of a batch, which is another one in each step, is not copied.
        """
        key = id(tensor)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(tensor, place, is_kept=is_kept or is_cold)
            entry.copies_first = not is_batch
            if is_cold:
                entry.read()
            else:
                self._single[key] = entry
            if not entry.is_kept:
                self._copy(entry)
                if tensor.is_leaf and tensor.requires_grad:
                    self._leaves[key] = entry
                if entry.num_bytes > SMALL_BYTES:
                    self._large[key] = entry
        entry.num_parents += 1
        return entry

    def leave(self, entry: Entry) -> None:
        """One less refers to it."""
        key = id(entry.tensor)
        entry.num_parents -= 1
        if not entry.num_parents:
            del self._entries[key]
            self._single.pop(key, None)
            self._large.pop(key, None)
            self._leaves.pop(key, None)
            self._drop_copy(entry)
            self._is_stale |= entry.index is not None

    def take(self) -> None:
        """Notes the counters, and copies what is copied."""
        staying = [entry for entry in self._single.values() if entry.version is not None]
        if self._is_stale or len(staying) > _MOST_SINGLE:
            self._read_together()
        self._versions = self._counters.read()
        with _unseen():
            for copies, views in self._groups:
                torch._foreach_copy_(copies, views)
            for entry in self._single.values():
                if entry.version is not None and entry.is_whole:
                    entry.copy.copy_(entry.view)
                entry.read()
            for entry in self._leaves.values():
                gradient = entry.tensor.grad
                if gradient is not None or entry.gradient[0] is not None:
                    entry.gradient = _note_gradient(gradient)

    def learn(self) -> None:
        """After a step: a large tensor that it has changed is copied from now on, others not."""
        for entry in [*self._large.values()]:
            if self._version(entry) not in (None, entry.tensor._version):
                if not (entry.was_written and entry.is_whole):
                    entry.was_written = True
                    self._copy(entry)
            elif entry.is_whole and not entry.was_written:
                self._copy(entry)

    def changed(self, others: Collection[int]) -> Iterator[tuple[Entry, str | None]]:
        """The tensors that a step has changed, and why they cannot be put back.

        Args:
            others: the identities of tensors that are left alone.
        """
        self._counters.check()
        for key, entry in self._entries.items():
            if key in others:
                continue
            version, address = self._version(entry), entry.address
            # As by `parameter.data = ...`, in this step or an earlier one.
            is_elsewhere = _has_address(entry.tensor) and entry.tensor.data_ptr() != address
            if is_elsewhere:
                entry.address = entry.tensor.data_ptr()
            is_moved = is_elsewhere or version not in (None, version_of(entry.tensor))
            gradient, before, copy = entry.gradient
            if gradient is not None and copy is None and version_of(gradient) != before:
                yield entry, "its gradient was changed"
            elif entry.tensor.shape != entry.shape:
                yield entry, "its shape was changed"
            elif entry.is_whole:
                yield entry, None
            elif is_moved or _differs(entry):
                entry.was_written = True
                yield entry, _KEPT if entry.is_kept else f"{entry.num_bytes:,} bytes without a copy"

    def restore(self, others: Collection[int]) -> None:
        """Puts back what was copied, past version counters: graphs may have saved the tensors."""
        with _unseen():
            for entry in [e for key, e in self._entries.items() if key not in others]:
                if entry.tensor.is_leaf and entry.tensor.requires_grad != entry.requires_grad:
                    entry.tensor.requires_grad_(entry.requires_grad)
                if entry.is_whole:
                    entry.tensor.data.copy_(entry.copy)
            for entry in self._leaves.values():
                gradient, _, copy = entry.gradient
                entry.tensor.grad = gradient
                if copy is not None:
                    gradient.copy_(copy)

    def _version(self, entry: Entry) -> int | None:
        return entry.version if entry.index is None else int(self._versions[entry.index])

    def _read_together(self) -> None:
        """From now on the counters of all that has stayed are read in one call, and what is copied
        of them is copied in one call for each device.
        """
        # Not of a batch, which these lists would hold after its step.
        self._is_stale = False
        self._together = [
            entry for key, entry in self._entries.items()
            if entry.copies_first and not entry.tensor.is_inference()
            and (entry.index is not None or (key in self._single and entry.version is not None))
        ]  # fmt: skip
        groups: dict[Any, tuple[list[Any], list[Any]]] = {}
        for index, entry in enumerate(self._together):
            entry.index = index
            self._single.pop(id(entry.tensor), None)
            entry.read()
        for entry in self._together:
            if entry.is_whole:
                copies, views = groups.setdefault(entry.tensor.device, ([], []))
                copies.append(entry.copy)
                views.append(entry.view.detach())
        self._groups = [*groups.values()]
        self._counters = Counters([entry.tensor for entry in self._together])

    def _copy(self, entry: Entry) -> None:
        """Makes a copy of a tensor; of a few elements where it is large and not known to change."""
        self._drop_copy(entry)
        self._is_stale |= entry.index is not None
        tensor, device = entry.tensor, entry.tensor.device
        if not _is_copyable(tensor):
            return
        is_first = entry.copies_first and entry.version is None and entry.index is None
        is_wanted = entry.num_bytes <= SMALL_BYTES or entry.was_written or is_first
        num_bytes = self.num_bytes.get(device, 0)
        if is_wanted and num_bytes + entry.num_bytes <= MOST_BYTES:
            self.num_bytes[device] = num_bytes + entry.num_bytes
            entry.view = tensor
        elif tensor.is_contiguous() and not (tensor.is_cuda and PHANTOM in os.environ):
            # A simulated GPU has no elements to compare.
            middle = tensor.numel() // 2
            entry.view = tensor.detach().view(-1)[middle : middle + _NUM_SAMPLED]
        if entry.view is None:
            return
        try:
            with _unseen():
                entry.copy = entry.view.detach().clone()
        except torch.OutOfMemoryError:
            self._drop_copy(entry)  # then its counter says whether it was changed

    def _drop_copy(self, entry: Entry) -> None:
        if entry.is_whole:
            self.num_bytes[entry.tensor.device] -= entry.num_bytes
        entry.view = entry.copy = None


@contextmanager
def _unseen() -> Iterator[None]:
    """Within it modes of the program do not see operations, which one of them could fail."""
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        yield


def _note_gradient(gradient: Any) -> tuple[Any, int, Any]:
    if gradient is None:
        return (None, 0, None)
    is_small = gradient.numel() * gradient.element_size() <= SMALL_BYTES
    is_copied = is_small and _is_copyable(gradient)
    return (gradient, version_of(gradient), gradient.detach().clone() if is_copied else None)


def _differs(entry: Entry) -> bool:
    """True if the elements that are compared are others."""
    if entry.copy is None:
        return False
    with _unseen():
        return not torch.equal(entry.view, entry.copy)


def _has_address(tensor: Any) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided


def _is_copyable(tensor: Any) -> bool:
    """True if there is one element of memory for each of its elements, on this rank."""
    return bool(
        tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and not any(
            step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
        )
    )
