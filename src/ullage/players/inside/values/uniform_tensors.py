"""Uniform device tensors: all their elements are assumed to be the same number.

The phantom keeps the number with the tensor's block (csrc/machine/values.c) until something writes
to the block. A tensor without such a number has the policy's number. A mask stores the comparison
that made it: once the mask or its source is read, the other one agrees.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

from ullage.players.inside import library
from ullage.players.inside.library import Uniformity
from ullage.players.inside.values.policy import Policy, deciding
from ullage.players.inside.values.uniform import COMPARISONS

_MAX_ORIGINS = 1024


class Number(NamedTuple):
    """The number of all elements of a tensor, and how certain it is."""

    value: float
    uniformity: Uniformity


@dataclass(frozen=True, slots=True)
class Origin:
    """The comparison of a tensor with a number that made a mask."""

    source: weakref.ref[Any]
    name: str
    bound: float


class UniformTensors:
    """Reads and writes the numbers of tensors with an address on the device."""

    def __init__(self, torch: ModuleType, policy: Policy) -> None:
        self._torch = torch
        self._policy = policy
        self._origins: dict[int, Origin] = {}

    def stored(self, tensor: Any) -> Number | None:
        """The number that the phantom keeps with a tensor's block."""
        address = tensor.data_ptr()
        row = library.number_at(address)
        if row is None:
            return None
        number = Number(*row)
        if number.uniformity is Uniformity.ASSUMED and address in self._origins:
            return self._renewed(tensor, self._origins[address]) or number
        return number

    def of(self, tensor: Any) -> Number:
        """The number of a tensor; the policy's if the phantom keeps none."""
        assumed = Uniformity.ASSUMED if tensor.numel() else Uniformity.TRUE  # of no elements
        return self.stored(tensor) or Number(self._policy.number(tensor.dtype), assumed)

    def write(self, tensor: Any, number: float, uniformity: Uniformity) -> bool:
        """Stores the number of a tensor that fills its storage; False: it does not fill it, or the
        type cannot represent the number.
        """
        value = self._policy.cast(number, tensor.dtype)
        if value is None or tensor.numel() * tensor.element_size() > _whole_bytes(tensor):
            return False
        self._origins.pop(tensor.data_ptr(), None)
        library.forget(tensor.data_ptr())
        library.set_number(tensor.data_ptr(), value, int(uniformity))
        return True

    def link(self, mask: Any, source: Any, name: str, bound: float) -> None:
        """Stores that a mask is the comparison of a tensor with a number."""
        if name not in COMPARISONS:
            return
        if len(self._origins) >= _MAX_ORIGINS:
            self._origins.clear()
        self._origins[mask.data_ptr()] = Origin(weakref.ref(source), name, bound)

    def decide(
        self,
        tensor: Any,
        number: float | None = None,
        why: Uniformity = Uniformity.DECIDED,
    ) -> None:
        """Fixes the number of a tensor that the program branches on or reads: `number`, or the
        assumed one. If the tensor is a mask, its source is fixed accordingly.
        """
        value, uniformity = self.of(tensor)
        if uniformity is Uniformity.TRUE or uniformity >= why:
            return
        is_open = uniformity is Uniformity.ASSUMED
        value = number if is_open and number is not None else value
        library.set_number(tensor.data_ptr(), value, int(why))
        if not is_open:
            return
        origin = self._origins.pop(tensor.data_ptr(), None)
        source = None if origin is None else origin.source()
        if origin is None or source is None:
            return
        of_source, why = self.of(source)
        if why is Uniformity.ASSUMED:
            holds = bool(value)
            of_source = deciding(origin.name, origin.bound, of_source, holds=holds)
            self.decide(source, of_source)

    def _renewed(self, mask: Any, origin: Origin) -> Number | None:
        """A mask's number after its source was read; None: the source was not read."""
        source = origin.source()
        source_value = None if source is None else self.stored(source)
        if source_value is None or source_value.uniformity is Uniformity.ASSUMED:
            return None
        value = float(COMPARISONS[origin.name](source_value.value, origin.bound))
        del self._origins[mask.data_ptr()]
        library.set_number(mask.data_ptr(), value, int(Uniformity.DECIDED))
        return Number(value, Uniformity.DECIDED)


def _whole_bytes(tensor: Any) -> int:
    """The size of a storage if the tensor fills all of it; else -1."""
    storage = tensor.untyped_storage()
    num_bytes = int(storage.nbytes())
    is_whole = tensor.numel() * tensor.element_size() == num_bytes
    return num_bytes if is_whole and storage.data_ptr() == tensor.data_ptr() else -1
