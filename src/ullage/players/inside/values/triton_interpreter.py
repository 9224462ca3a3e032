"""Interprets a program of a Triton kernel on integers: its loads, arithmetic and stores.

The kernel's own Python code runs with `Language` in place of triton.language. A value has a flag
for each lane that says whether it is known. Results of unknown lanes are unknown. A branch, a loop
or an address that depends on an unknown lane ends the interpretation, as does anything not defined
here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np


class NotFollowedError(Exception):
    """This program cannot be interpreted."""


class Lanes:
    """Integers, flags or addresses, and whether each of them is known.

    Attributes:
        element: the type that an address points to; None: these are not addresses.
        base: the start of the memory that an address belongs to.
    """

    __array_ufunc__ = None  # makes NumPy's scalars use this class's arithmetic
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, data: Any, known: Any = None, element: Any = None, base: int | None = None
    ) -> None:
        self.data = np.asarray(data)
        self.known = np.broadcast_to(np.True_ if known is None else known, self.data.shape)
        self.element, self.base = element, base

    def __bool__(self) -> bool:
        return bool(self._only())

    def __index__(self) -> int:
        return int(self._only())

    def _only(self) -> Any:
        if self.data.size != 1 or not self.known.all():
            raise NotFollowedError
        return self.data.item()

    def __getitem__(self, key: Any) -> Lanes:
        return Lanes(self.data[key], self.known[key], self.element, self.base)

    def __invert__(self) -> Lanes:
        return Lanes(~self.data, self.known)

    def __neg__(self) -> Lanes:
        return Lanes(-self.data, self.known)

    def to(self, dtype: Any, **_options: Any) -> Lanes:
        """Converts to another integer type."""
        return Lanes(self.data.astype(dtype), self.known)


def _lanes(value: Any) -> Lanes:
    return value if isinstance(value, Lanes) else Lanes(value)


def _flat(values: Any, shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(values, shape).reshape(-1)


def _divide(a: Any, b: Any) -> Any:
    """Divides as C does: rounds towards zero."""
    return (a - np.fmod(a, b)) // b


def _combine(op: Callable[[Any, Any], Any], a: Any, b: Any) -> Lanes:
    a_lanes, b_lanes = _lanes(a), _lanes(b)
    known = a_lanes.known & b_lanes.known
    if a_lanes.element is None and b_lanes.element is None:
        plain = [value.data if isinstance(value, Lanes) else value for value in (a, b)]
        return Lanes(op(*plain), known)
    if op is not operator.add and op is not operator.sub:
        raise NotFollowedError
    address, offset = (a_lanes, b_lanes) if a_lanes.element is not None else (b_lanes, a_lanes)
    step = offset.data.astype(np.int64) * address.element.itemsize
    return Lanes(op(address.data, step), known, address.element, address.base)


_OPERATORS = "add sub mul floordiv mod and or xor lshift rshift eq ne lt le gt ge"
_LIKE_C = {"floordiv": _divide, "mod": np.fmod}


def _add_operators() -> None:
    for name in _OPERATORS.split():
        op = _LIKE_C.get(name) or getattr(operator, f"__{name}__")
        setattr(Lanes, f"__{name}__", lambda a, b, op=op: _combine(op, a, b))
        setattr(Lanes, f"__r{name}__", lambda b, a, op=op: _combine(op, a, b))


_add_operators()


class Region:
    """A range of memory: its bytes, and whether each is known; None: host memory, all known."""

    def __init__(self, start: int, data: Any, known: Any) -> None:
        self.start, self.data, self.known = start, data, known

    def holds(self, addresses: Any, size: int) -> Any:
        """Which of the addresses have `size` bytes within the region."""
        return (addresses >= self.start) & (addresses + size <= self.start + self.data.size)

    def read(self, addresses: Any, element: Any) -> tuple[Any, Any]:
        """Reads elements, with whether each of them is known."""
        at = (addresses - self.start)[:, None] + np.arange(element.itemsize)
        values = np.ascontiguousarray(self.data[at]).view(element)[:, 0]
        return values, True if self.known is None else self.known[at].all(axis=1)

    def write(self, addresses: Any, values: Any, known: Any) -> None:
        """Writes elements, some of which are known."""
        size = values.itemsize
        at = (addresses - self.start)[:, None] + np.arange(size)
        self.data[at[known]] = values[known].view(np.uint8).reshape(-1, size)
        if self.known is not None:
            self.known[at] = known[:, None]


class Language:
    """triton.language for one launch: memory is `regions`, everything else is unknown.

    Attributes:
        budget: the number of lanes that may still be loaded and stored.
    """

    int1, int8, int16, int32, int64 = map(np.dtype, ("?", "i1", "i2", "i4", "i8"))
    uint8, uint16, uint32, uint64 = map(np.dtype, ("u1", "u2", "u4", "u8"))
    range = static_range = staticmethod(lambda *ends, **_options: range(*map(operator.index, ends)))
    multiple_of = max_contiguous = max_constancy = staticmethod(lambda value, *_hints: value)
    static_assert = device_assert = staticmethod(lambda *_arguments, **_named: None)
    maximum = staticmethod(lambda a, b: _combine(np.maximum, a, b))
    minimum = staticmethod(lambda a, b: _combine(np.minimum, a, b))

    def __init__(self, grid: tuple[int, int, int], regions: list[Region], budget: int) -> None:
        self.budget = budget
        self.place = (0, 0, 0)
        self._grid, self._regions = grid, regions

    def program_id(self, axis: int) -> Lanes:
        """The index of this program."""
        return Lanes(np.int32(self.place[axis]))

    def num_programs(self, axis: int) -> Lanes:
        """The number of programs."""
        return Lanes(np.int32(self._grid[axis]))

    def arange(self, start: int, end: int) -> Lanes:
        """The numbers from start to end - 1."""
        return Lanes(np.arange(start, end, dtype=np.int32))

    def cdiv(self, a: Any, b: Any) -> Any:
        """The quotient, rounded up."""
        return (a + b - 1) // b

    def cast(self, value: Any, dtype: Any, **_options: Any) -> Lanes:
        """Converts to another integer type."""
        return _lanes(value).to(dtype)

    def where(self, flags: Any, yes: Any, no: Any) -> Lanes:
        """Selects from two values by the flags."""
        flags, yes, no = _lanes(flags), _lanes(yes), _lanes(no)
        known = flags.known & np.where(flags.data, yes.known, no.known)
        return Lanes(np.where(flags.data, yes.data, no.data), known)

    def load(self, pointer: Lanes, mask: Any = None, other: Any = None, **_options: Any) -> Lanes:
        """Loads from memory; `other` where the mask is false."""
        (addresses, may, is_sure), shape = self._meant(pointer, mask)
        instead = _lanes(0 if other is None else other)
        data = _flat(instead.data, shape).astype(pointer.element)
        known = is_sure & ~may & (other is not None) & _flat(instead.known, shape)
        for region, here in self._found(addresses, may & is_sure, pointer.element):
            data[here], known[here] = region.read(addresses[here], pointer.element)
        return Lanes(data.reshape(shape), known.reshape(shape))

    def store(self, pointer: Lanes, value: Any, mask: Any = None, **_options: Any) -> None:
        """Stores to memory; an unknown value makes the memory unknown."""
        (addresses, may, is_sure), shape = self._meant(pointer, mask)
        value = _lanes(value)
        data = _flat(value.data, shape).astype(pointer.element)
        known = _flat(value.known, shape) & is_sure
        for region, here in self._found(addresses, may, pointer.element):
            region.write(addresses[here], data[here], known[here])
        for region in self._regions if not pointer.known.all() else ():
            if region.start == pointer.base and region.known is not None:
                region.known[:] = False

    def _meant(self, pointer: Lanes, mask: Any) -> tuple[list[Any], tuple[int, ...]]:
        """The addresses as one row, which of them may be and which are surely used; their shape."""
        if not isinstance(pointer, Lanes) or pointer.element is None:
            raise NotFollowedError
        flags = Lanes(np.True_) if mask is None else _lanes(mask)
        shape = np.broadcast_shapes(pointer.data.shape, flags.data.shape)
        self.budget -= 64 + math.prod(shape)
        if self.budget < 0:
            raise NotFollowedError
        may = (flags.data.astype(bool) | ~flags.known) & pointer.known
        parts = (pointer.data, may, flags.known & pointer.known)
        return [_flat(part, shape) for part in parts], shape

    def _found(self, addresses: Any, meant: Any, element: Any) -> list[tuple[Region, Any]]:
        names = []
        for region in self._regions:
            here = meant & region.holds(addresses, element.itemsize)
            if here.any():
                names.append((region, here))
        return names
