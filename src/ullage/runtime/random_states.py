"""The states of the generators of Python, NumPy and torch."""

from __future__ import annotations

import ctypes
import random
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
        self._python: Any = None
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
        self._python = random.getstate()
        self._take_numpy()
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
