"""Which beginnings of prompts an engine has likely in its cache: those sent there last.

The engine itself decides what it keeps. This is a guess for routing alone; admission counts every
token of a prompt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class Prefixes:
    """The prefixes that were sent to an engine, the least recently used forgotten first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = max(1, capacity)
        self._hashes: OrderedDict[int, None] = OrderedDict()

    def count(self, prefix: Sequence[int]) -> int:
        """The number of hashes that are known, from the beginning on."""
        for number, value in enumerate(prefix):
            if value not in self._hashes:
                return number
        return len(prefix)

    def add(self, prefix: Sequence[int]) -> None:
        """Takes the prefix of a prompt that is sent."""
        # The end of a prompt is forgotten before its beginning, as an engine's cache does.
        for value in reversed(prefix):
            self._hashes[value] = None
            self._hashes.move_to_end(value)
        while len(self._hashes) > self._capacity:
            self._hashes.popitem(last=False)

    def clear(self) -> None:
        """Forgets all, as an engine that was started again has."""
        self._hashes.clear()
