"""Moves tensors that backward needs to the host in forward, and back before backward needs them.

The tensors that are saved for backward during one call of a module form a *round*. The storages of
a round are copied out while the module runs, and freed at the end of the next round. When backward
reaches a round, the storages of the previous round are already being copied back. So at most two
rounds are on the device, and which ones depends only on the order of calls, not on the speed of
copies.

A storage is copied once, however many views of it are saved. Storages of parameters and buffers are
not moved.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ullage.act.techniques.means.offloading.offload_link import Link, bytes_of
from ullage.ground.errors import PlanError

# A buffer may be this many times larger than its content.
_SLACK = 2


class Engine:
    """Offloads tensors that are saved for backward, through a link.

    Args:
        link: the link to the host.
        device_type: the device type of the offloaded tensors: "cuda".
        least_bytes: smaller storages stay on the device.
    """

    def __init__(self, link: Link, device_type: str, least_bytes: int) -> None:
        self.link = link
        self._device_type = device_type
        self._least_bytes = least_bytes
        self._last_round: _Round | None = None
        self._known: dict[int, tuple[Any, weakref.ref[_Offloaded]]] = {}
        self._free: list[Any] = []

    @contextmanager
    def round(self, stays: Iterable[Any]) -> Iterator[None]:
        """Offloads tensors that are saved in this context, except those in `stays`."""
        from torch.autograd.graph import saved_tensors_hooks

        before = self._last_round
        now = _Round(before)
        staying = {tensor.untyped_storage()._cdata for tensor in stays if _has_storage(tensor)}
        with saved_tensors_hooks(lambda tensor: self._pack(tensor, now, staying), self._unpack):
            yield
        if now.offloaded:
            self._last_round = now
            if before is not None:
                before.leave()

    def pass_by(self, output: Any) -> None:
        """Frees the last round after a module that is not offloaded, and fetches it before backward
        goes through that module.
        """
        last = self._last_round
        if last is None:
            return
        last.leave()
        tensor = _first_tensor(output)
        if tensor is not None and tensor.requires_grad:
            reference = weakref.ref(last)
            tensor.register_hook(lambda _: _fetch(reference()))

    def take(self, num_bytes: int) -> Any:
        """A host buffer that no copy uses any more at this point of the program's stream."""
        fits = [
            (buffer.numel(), index)
            for index, buffer in enumerate(self._free)
            if num_bytes <= buffer.numel() <= _SLACK * num_bytes
        ]
        if fits:
            return self._free.pop(min(fits)[1])
        return self.link.host_bytes(num_bytes)

    def give_back(self, buffer: Any) -> None:
        """Returns a buffer after all its copies were waited for."""
        self._free.append(buffer)

    def _pack(self, tensor: Any, now: _Round, staying: set[int]) -> Any:
        if not self._is_offloaded(tensor):
            return tensor
        storage = tensor.untyped_storage()
        if storage._cdata in staying:
            return tensor
        offloaded = self._offload(tensor, storage)
        now.offloaded.append(weakref.ref(offloaded))
        return _View(offloaded, now, tensor)

    def _is_offloaded(self, tensor: Any) -> bool:
        return (
            tensor.device.type == self._device_type
            and _has_storage(tensor)
            and tensor.untyped_storage().nbytes() >= max(1, self._least_bytes)
            and not tensor.is_conj()
            and not tensor.is_neg()
        )

    def _offload(self, tensor: Any, storage: Any) -> _Offloaded:
        from torch.multiprocessing.reductions import StorageWeakRef

        # The reference prevents reuse of the address, but does not keep the memory.
        key = storage._cdata
        if key in self._known:
            reference, known = self._known[key]
            offloaded = known()
            if offloaded is not None and not reference.expired() and offloaded.is_of(tensor):
                return offloaded
        new = _Offloaded(self, tensor)
        self._known[key] = StorageWeakRef(storage), weakref.ref(new, lambda _: self._forget(key))
        return new

    def _forget(self, key: int) -> None:
        known = self._known.get(key)
        if known is not None and known[1]() is None:
            del self._known[key]

    @staticmethod
    def _unpack(packed: Any) -> Any:
        return packed.tensor() if isinstance(packed, _View) else packed


class _Round:
    """The storages that one call of a module saves; it lives as long as they do."""

    def __init__(self, before: _Round | None) -> None:
        self._before = None if before is None else weakref.ref(before)
        self.offloaded: list[weakref.ref[_Offloaded]] = []

    def leave(self) -> None:
        """Frees the device memory of storages that are copied to the host."""
        for offloaded in self._alive():
            offloaded.leave()

    def come(self) -> None:
        """Backward has reached this round: fetches the previous round, which is next."""
        before, self._before = self._before, None
        if before is not None:
            _fetch(before())

    def fetch(self) -> None:
        """Starts to copy it back: what was saved last is needed first."""
        for offloaded in reversed(self._alive()):
            offloaded.fetch()

    def _alive(self) -> list[_Offloaded]:
        return [
            offloaded
            for offloaded in (reference() for reference in self.offloaded)
            if offloaded is not None
        ]


class _Offloaded:
    """A storage that is on the device, on the host, or being copied.

    The program's stream waits for every copy before the device memory of that copy is freed.
    """

    def __init__(self, engine: Engine, tensor: Any) -> None:
        self._engine = engine
        self._link = engine.link
        self._device = tensor.device
        self._version = tensor._version
        self._source: Any = tensor
        self._bytes: Any = bytes_of(tensor)
        self._num_bytes = self._bytes.numel()
        self._host = engine.take(self._num_bytes)
        self._out = self._link.copy_out(self._host[: self._num_bytes], self._bytes)
        self._is_coming = False
        self._in: Any = None

    def is_of(self, tensor: Any) -> bool:
        """True if a tensor of the same storage has the values that were saved."""
        return bool(tensor._version == self._version)

    def leave(self) -> None:
        """Frees the device memory after the copy to the host."""
        if self._source is not None:
            self._check()
            self._link.wait(self._out)
            self._source = self._bytes = None

    def fetch(self) -> None:
        """Starts to copy it back, if it is not on the device."""
        if self._bytes is None:
            self._bytes = self._link.device_bytes(self._num_bytes, self._device)
            self._in = self._link.copy_in(self._bytes, self._host[: self._num_bytes])
            self._is_coming = True

    def storage(self) -> Any:
        """The storage on the device, with its values."""
        self._check()
        self.fetch()
        self._arrive()
        return self._bytes.untyped_storage()

    def _arrive(self) -> None:
        if self._is_coming:
            self._link.wait(self._in)
            self._is_coming = False

    def _check(self) -> None:
        if self._source is not None and self._source._version != self._version:
            raise PlanError(
                "'offload_activations' does not go with this program: a tensor of shape "
                f"{tuple(self._source.shape)} was changed in place after it was saved for backward"
            )

    def __del__(self) -> None:
        if sys.is_finalizing() or not hasattr(self, "_in"):
            return
        if self._source is not None:
            self._link.wait(self._out)
        self._arrive()
        self._engine.give_back(self._host)


class _View:
    __slots__ = ("_dtype", "_offloaded", "_offset", "_round", "_size", "_stride", "_version")

    def __init__(self, offloaded: _Offloaded, of: _Round, tensor: Any) -> None:
        self._offloaded = offloaded
        self._round = of
        self._dtype = tensor.dtype
        self._offset = tensor.storage_offset()
        self._size = tensor.size()
        self._stride = tensor.stride()
        self._version = tensor._version

    def tensor(self) -> Any:
        """The tensor, on the device, of the version that was saved."""
        import torch

        self._round.come()
        storage = self._offloaded.storage()
        empty = torch.empty(0, dtype=self._dtype, device=storage.device)
        view = empty.set_(storage, self._offset, self._size, self._stride).data
        for _ in range(self._version):
            torch.autograd.graph.increment_version(view)
        return view


def _fetch(of: _Round | None) -> None:
    if of is not None:
        of.fetch()


def _first_tensor(output: Any) -> Any:
    while isinstance(output, tuple | list | dict) and output:
        output = next(iter(output.values() if isinstance(output, dict) else output))
    if hasattr(output, "_late"):  # logits without values: the input of their head
        output = output._late[0].features
    return output if hasattr(output, "register_hook") else None


def _has_storage(tensor: Any) -> bool:
    """True if a tensor is plain: neither sparse nor of a class of its own (DTensor, quantised)."""
    import torch

    return type(tensor) in {torch.Tensor, torch.nn.Parameter} and tensor.layout == torch.strided
