"""The rung that all ranks of a training are to be on, by the store of the default process group.

Nothing depends on when a rank hears of it: each rank runs its own calls again, and DDP waits for
the slowest. So there is no vote in a step and no thread. A rank that has run out of memory writes
its rung to the store; at most once a second, after a step, each rank looks whether there is news.
Ranks go back up when each has said that its steps needed less.

The news are numbered, and the same for all: who writes the next number first is heard.
"""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import torch.distributed as dist

from ullage.runtime.failure import say

INTERVAL_S = 1.0
_numbers = itertools.count(1)


class SharedRung:
    """What one rank knows of it.

    Args:
        rank: of this process.
        store: of all ranks.
        world_size: the number of ranks.
        prefix: of the keys; the same on all ranks.
        interval_s: the time between two looks.

    Attributes:
        rank: of this process.
        rung: that all ranks are to be on.
        last_rank: that was heard last.
        is_lost: whether the store does not answer any more.
    """

    def __init__(
        self,
        rank: int,
        store: Any,
        world_size: int,
        prefix: str,
        interval_s: float,
    ) -> None:
        self.rank = rank
        self.rung = 0
        self.last_rank = rank
        self.is_lost = False
        self._store = store
        self._world_size = world_size
        self._interval_s = interval_s
        self._prefix = prefix
        self._num_read = 0
        self._is_calm = False
        self._next_look = time.monotonic()

    def fail(self, rung: int) -> None:
        """This rank has run out of memory, and is on a rung now."""
        if rung > self.rung:
            self._try(lambda: self._write_next(rung))

    def be_calm(self) -> None:
        """The steps of this rank have needed less. When those of all have, they go up by one."""
        if self._is_calm or not self.rung:
            return
        self._is_calm = True
        self._try(self._count_calm)

    def poll(self) -> None:
        """Reads the news, if it is time."""
        now = time.monotonic()
        if now >= self._next_look and not self.is_lost:
            self._next_look = now + self._interval_s
            self._try(self._read_all)

    def _count_calm(self) -> None:
        if self._store.add(f"{self._prefix}/calm/{self._num_read}", 1) == self._world_size:
            # Where a rank has run out of memory meanwhile, that is heard, and not this.
            self._write(self.rung - 1)

    def _write_next(self, rung: int) -> None:
        """Writes the news after all others."""
        while rung > self.rung and not self._write(rung):
            pass

    def _write(self, rung: int) -> bool:
        """Whether this rank was the first to write the next news; reads them if not."""
        news = json.dumps({"rung": rung, "rank": self.rank})
        first = self._store.compare_set(self._key(), "", news).decode()
        self._take(json.loads(first))
        return bool(first == news)

    def _read_all(self) -> None:
        while self._store.check([self._key()]):
            self._take(json.loads(self._store.get(self._key())))

    def _take(self, news: dict[str, int]) -> None:
        self._num_read += 1
        self._is_calm = False
        self.rung, self.last_rank = news["rung"], news["rank"]

    def _key(self) -> str:
        return f"{self._prefix}/{self._num_read + 1}"

    def _try(self, call: Any) -> None:
        """Calls something. The training does not depend on it, so an error is only said."""
        if self.is_lost:
            return
        try:
            call()
        except RuntimeError as error:  # the errors of stores are
            self.is_lost = True
            say(f"rank {self.rank}: rungs are not shared, as the store does not answer: {error}")


def open_shared_rung(rank: int) -> SharedRung:
    """That of a model of the default process group, whose models all ranks meet in one order."""
    store = dist.distributed_c10d._get_default_store()
    prefix = f"ullage/rung/{next(_numbers)}"
    return SharedRung(rank, store, dist.get_world_size(), prefix, INTERVAL_S)
