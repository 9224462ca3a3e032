"""The deferred operations of CPU storages, and their execution when something reads the storage."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ullage.ground.units import format_bytes
from ullage.players.inside import library
from ullage.players.inside.process import host
from ullage.players.inside.weights.recipes import Recipe, Recipes, Step, view_of

_CHECKED_BYTES = 256 << 20
"""Before filling this many bytes, ullage checks whether this machine has the memory."""


class TooLargeToReadError(RuntimeError):
    """The program reads a deferred tensor, and this machine does not have the memory for it."""


class PutOff:
    """The deferred operations of one storage; the reference does not keep the storage alive."""

    def __init__(self, reference: Any, *, is_whole: bool) -> None:
        self.reference = reference
        self.is_whole = is_whole  # the operations overwrite every byte
        self.steps: tuple[Step, ...] = ()


class Held:
    """The storages with deferred operations.

    Attributes:
        recipes: executes the operations.
        count: the number of random fills that were skipped.
    """

    def __init__(
        self, torch: ModuleType, on_first: Callable[[], None], on_none: Callable[[], None]
    ) -> None:
        """`on_first` is called when the first storage is deferred, `on_none` when none is left."""
        self.recipes = Recipes(torch)
        self.count = 0
        self._torch = torch
        self._on_first, self._on_none = on_first, on_none
        self._storage_of = torch._C.TensorBase.untyped_storage
        self._address = torch._C.TensorBase.data_ptr
        self._storages: dict[int, PutOff] = {}
        self._lock = threading.RLock()

    def begin_in_child(self) -> None:
        """Replaces the lock in a forked process, because another thread may have held it."""
        self._lock = threading.RLock()

    def find(self, tensor: Any) -> PutOff | None:
        """Finds the deferred operations of a tensor's storage; None: there are none."""
        try:
            return self._storages.get(self._storage_of(tensor)._cdata)
        except (RuntimeError, NotImplementedError):  # a subclass without storage of its own
            return None

    def recipe(self, tensor: Any) -> Recipe | None:
        """The recipe for a tensor; None: not every byte of it is deferred."""
        put_off = self.find(tensor)
        if put_off is None or not put_off.is_whole:
            return None
        return Recipe(self._storage_of(tensor).nbytes(), put_off.steps, view_of(tensor))

    def fills_storage(self, tensor: Any) -> bool:
        """True if a tensor covers its whole storage."""
        num_bytes = tensor.numel() * tensor.element_size()
        return bool(tensor.is_contiguous() and self._storage_of(tensor).nbytes() == num_bytes)

    def note(self, tensor: Any, step: Step, *, is_new: bool = False) -> None:
        """Defers a step; `is_new`: the tensor's storage was allocated for it."""
        storage = self._storage_of(tensor)
        put_off = self._storages.get(storage._cdata)
        if put_off is None:
            reference = self._torch.multiprocessing.reductions.StorageWeakRef(storage)
            is_whole = is_new or self.fills_storage(tensor)
            put_off = self._storages[storage._cdata] = PutOff(reference, is_whole=is_whole)
        put_off.steps += (step,)
        self._count(step, 1)
        library.host_filled(self._address(tensor), tensor.numel() * tensor.element_size())
        self._on_first()

    def overwrite(self, tensor: Any, step: Step, *, is_new: bool = False) -> None:
        """Defers a step that overwrites every element of a tensor; zeros are written at once.

        Args:
            tensor: contiguous, unless it is new.
            step: an operation on the whole tensor.
            is_new: the tensor's storage was allocated for it.
        """
        if is_new or self.fills_storage(tensor):
            self.drop(self._storage_of(tensor))
        if step.is_zero and self.find(tensor) is None:
            size = self._storage_of(tensor).nbytes() if is_new else tensor.numel()
            each = 1 if is_new else tensor.element_size()
            library.host_zero(self._address(tensor), size * each)
        else:
            self.note(tensor, step, is_new=is_new)

    def _count(self, step: Step, sign: int) -> None:
        if step.generator_state is not None:
            self.count += sign

    def read(self, tensor: Any) -> None:
        """Executes the deferred operations of a tensor's storage."""
        if not self.recipes.is_busy and self.find(tensor) is not None:
            self._do(self._storage_of(tensor))

    def read_everything(self) -> None:
        """Executes all deferred operations of storages that are still alive."""
        if self.recipes.is_busy:
            return
        self.sweep()
        storage_type = self._torch.UntypedStorage
        for storage in list(self._storages.values()):
            if not storage.reference.expired():
                self._do(storage_type._new_with_weak_ptr(storage.reference.cdata))

    def _do(self, storage: Any) -> None:
        with self._lock:  # waits if another thread is executing them
            put_off = self._storages.get(storage._cdata)
            if put_off is None:
                return
            _check_room(storage.nbytes())
            self.recipes.follow(storage, put_off.steps)
            self.drop(storage)

    def drop(self, storage: Any) -> None:
        """Forgets the operations of a storage, because they were executed or overwritten."""
        put_off = self._storages.pop(storage._cdata, None)
        for step in put_off.steps if put_off is not None else ():
            self._count(step, -1)
        self.sweep()

    def sweep(self) -> None:
        """Forgets storages that were freed."""
        for key, put_off in list(self._storages.items()):
            if put_off.reference.expired():
                self._storages.pop(key, None)
        if not self._storages:
            self._on_none()


def _check_room(num_bytes: int) -> None:
    """Raises an error if the kernel would kill the process for filling this many bytes."""
    if num_bytes < _CHECKED_BYTES:
        return
    room = host.available_bytes()
    if room is not None and num_bytes > room:
        raise TooLargeToReadError(
            f"ullage: the program reads {format_bytes(num_bytes)} of weights on the CPU, which "
            "were not initialised until now, and this machine has "
            f"{format_bytes(room)} of memory left; move them to the device unread, or run this "
            "where there is more memory"
        )
