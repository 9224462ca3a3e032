"""The blocks of a cache, counted: those that nobody uses are a queue, the longest unused first.

pool = BlockPool(1000)
pool.take(10)                   # from the front of the queue; what lay there is forgotten
pool.give(("request", 7), 10)   # to its end; what lies there can be found again
pool.resident(("request", 7))   # as many as have not been taken meanwhile
pool.reclaim(("request", 7), 4)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class BlockPool:
    """Counts of blocks.

    Attributes:
        size: all blocks.
        free: those that nobody uses.
    """

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self._queue: OrderedDict[Hashable, int] = OrderedDict({None: size})

    def take(self, count: int) -> None:
        """Takes blocks from the front; there must be as many free."""
        self.free -= count
        while count:
            key, there = next(iter(self._queue.items()))
            if there <= count:
                del self._queue[key]
                count -= there
            else:
                # The last blocks of a request lie in front: what is left is its beginning.
                self._queue[key] = there - count
                count = 0

    def give(self, key: Hashable, count: int) -> None:
        """Gives blocks back, under a name by which they can be found."""
        if count:
            self.free += count
            self._queue[key] = self._queue.pop(key, 0) + count

    def resident(self, key: Hashable) -> int:
        """The blocks of that name that have not been taken by others."""
        return self._queue.get(key, 0)

    def reclaim(self, key: Hashable, count: int) -> None:
        """Takes so many of that name; as many must be there."""
        left = self._queue.pop(key, 0) - count
        if left > 0:
            self._queue[key] = left
        self.free -= count
