"""The rows of claims, the most of them in columns: a sixth of the memory of tuples, as a long run
has many.
"""

from __future__ import annotations

import array
import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ullage.record.owners.modules import Place

ClaimRow = tuple[int, int, int, str, "list[Place]"]
"""Position, device, address, category, and the name: a place, or none yet."""
_MANY = 1024


class ClaimRows:
    """Claims in their order. Several threads may append: to a list, which one of them moves into
    the columns now and then.
    """

    def __init__(self, rows: Iterable[ClaimRow] = ()) -> None:
        self._positions, self._addresses = array.array("q"), array.array("q")
        self._devices, self._kinds = array.array("h"), array.array("B")
        self._names: list[list[Place]] = []
        self._categories: list[str] = []
        self._num_moved = 0
        self._fresh: list[ClaimRow] = []
        self._moving = threading.Lock()
        for row in rows:
            self.append(row)

    def append(self, row: ClaimRow) -> None:
        """One more."""
        self._fresh.append(row)
        if len(self._fresh) >= _MANY and self._moving.acquire(blocking=False):
            try:
                self._move()
            finally:
                self._moving.release()

    def _move(self) -> None:
        rows = self._fresh[:_MANY]
        for position, device, address, category, name in rows:
            if category not in self._categories:
                self._categories.append(category)
            self._positions.append(position)
            self._devices.append(device)
            self._addresses.append(address)
            self._kinds.append(self._categories.index(category))
            self._names.append(name)
        self._num_moved += len(rows)
        del self._fresh[: len(rows)]

    def keep(self, rows: Iterable[ClaimRow]) -> None:
        """These and no others from here on; they may come from this object."""
        self.__dict__ = ClaimRows(rows).__dict__

    def keep_newest(self, count: int) -> None:
        """Forgets all but this many of the newest."""
        excess = max(0, len(self) - count)
        if excess:
            self.keep(islice(self, excess, None))

    def keep_last_of_address(self) -> None:
        """Keeps the last row of each owner of an address. A block that is live has no later owner,
        so that its row is kept; blocks that were at its address before lose theirs.
        """
        last: dict[tuple[int, int, str, Place | int], ClaimRow] = {}
        for row in self:
            _, device, address, category, name = row
            key = (device, address, category, name[0] if name else id(name))
            last.pop(key, None)  # so that the rows stay in their order
            last[key] = row
        self.keep(last.values())

    def __len__(self) -> int:
        return self._num_moved + len(self._fresh)

    def __iter__(self) -> Iterator[ClaimRow]:
        # In this order another thread's move gives rows twice, which says nothing more, and loses
        # none.
        fresh, count, categories = list(self._fresh), self._num_moved, self._categories
        columns = (self._positions, self._devices, self._addresses, self._kinds, self._names)
        for position, device, address, kind, name in islice(zip(*columns, strict=False), count):
            yield position, device, address, categories[kind], name
        yield from fresh
