"""The states of the generators of Python, NumPy and torch."""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Sequence
from typing import Any

import torch

_MT19937_BYTES = 4 * 624 + 4  # its words, and the place among them


class RandomStates:
    """Generators of Python, NumPy, and torch on the host and the devices of the parameters."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        devices = {parameter.device for parameter in parameters}
        self._devices = sorted(each.index for each in devices if each.type == "cuda")
        self._python = _Python()
        self._numpy: Any = None
        self._host: Any = None
        self._on_devices: list[Any] = []
        self._numpy_mark: tuple[Any, bytes] | None = None

    def _take_numpy(self) -> None:
        """NumPy takes 70 us for a state, so its memory is compared first. The second number of a
        pair of normal ones is elsewhere; where there is one, nothing is compared.
        """
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return
        find = getattr(numpy.random, "get_bit_generator", None)
        generator = None if find is None else find()
        mark = None
        if generator is not None and type(generator).__name__ == "MT19937":
            memory = ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
            mark = (generator, memory)
        if mark is None or mark != self._numpy_mark or self._numpy["has_gauss"]:
            self._numpy = numpy.random.get_state(legacy=False)
            self._numpy_mark = mark

    def take(self) -> None:
        """Notes the states."""
        self._python.take()
        self._take_numpy()
        self._host = torch.get_rng_state()
        self._on_devices = [torch.cuda.get_rng_state(index) for index in self._devices]

    def have_moved(self) -> bool:
        """True if one of torch's generators has drawn since they were noted."""
        states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self._devices)]
        pairs = zip(states, [self._host, *self._on_devices], strict=True)
        return not all(torch.equal(state, noted) for state, noted in pairs)

    def rewind(self) -> None:
        """Restores the states."""
        self._python.rewind()
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        torch.set_rng_state(self._host)
        for index, state in zip(self._devices, self._on_devices, strict=True):
            torch.cuda.set_rng_state(state, index)


class _Python:
    """Python's generator. A state takes 14 us, as it is a tuple of 625 numbers, so its memory is
    copied where the tuple's words lie in it as in CPython; elsewhere the tuple is made.
    """

    def __init__(self) -> None:
        self._generator: Any = _present()
        self._address = _find_words(self._generator)
        self._memory = b""
        self._next: float | None = None
        self._state: Any = None

    def take(self) -> None:
        """Notes the state."""
        if self._address is None or _present() is not self._generator:
            self._state = random.getstate()
            return
        self._memory = ctypes.string_at(self._address, _MT19937_BYTES)
        self._next, self._state = self._generator.gauss_next, None

    def rewind(self) -> None:
        """Restores the state."""
        if self._state is None:
            place, *words = struct.unpack("625I", self._memory)
            self._state = (self._generator.VERSION, (*words, place), self._next)
        random.setstate(self._state)


def _present() -> Any:
    """The generator of the functions of `random`; None where a program has its own functions."""
    return getattr(random.getstate, "__self__", None)


def _find_words(generator: Any) -> int | None:
    """The address of the place among a generator's words, which is before them; None where they are
    not found.
    """
    if type(generator) is not random.Random:
        return None
    *words, place = generator.getstate()[1]
    memory = ctypes.string_at(id(generator), generator.__sizeof__())
    offset = memory.find(struct.pack("625I", place, *words))
    return None if offset < 0 else id(generator) + offset
