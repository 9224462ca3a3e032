"""How long the program waits for its batches, and whether the GPU had work meanwhile.

    waits = BatchWaits(torch)
    waits.install(patches)          # in front of every DataLoader's next batch
    waits.end_step(1)
    waits.fields()

A wait costs time only where the GPU has nothing left to do. So the stream that computes is asked
when a wait begins, and when it ends. Idle already when it began, all of the wait is lost; idle when
it ended, a part of it is lost, and up to all. Asking takes microseconds and waits for nothing.

Waits of the thread that ends the steps count, else those of the main thread: a thread that reads
ahead may wait as long as it likes.
"""

from __future__ import annotations

import functools
import operator
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from ullage.players.inside import torch_internals
from ullage.players.inside.part import Part
from ullage.players.inside.steps.step_rows import StepRows

if TYPE_CHECKING:
    from ullage.players.inside.patches import Patches

Result = TypeVar("Result")
MAX_ROWS = 1 << 12
_ITERATOR = "torch.utils.data.dataloader._BaseDataLoaderIter"
_watching: list[BatchWaits] = []  # at most one


class BatchWaits(Part):
    """Sums of the steps: their seconds, those of waits for batches, and of these the seconds in
    which the GPU was idle: at least, and at most.

    now: a clock in seconds.
    """

    def __init__(
        self,
        torch: ModuleType,
        *,
        max_rows: int = MAX_ROWS,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._torch: Any = torch
        self._now = now
        self._sums = StepRows((operator.add,) * 4, max_rows)
        self._num_workers: int | None = None
        self._step_began_s = now()
        self._stepping_thread = threading.get_ident()
        self._waits: dict[int, tuple[float, float, float]] = {}  # by thread, since the last step
        self._inside: set[int] = set()

    def install(self, patches: Patches) -> None:
        """Stands in front of the next batch of each DataLoader, and of `ullage.prefetch`."""
        _watching[:] = [self]
        iterator_type = torch_internals.find(self._torch, _ITERATOR)
        if iterator_type is None:
            return
        take_next = iterator_type.__next__

        @functools.wraps(take_next)
        def take_and_count(iterator: Any) -> Any:
            self._note_workers(iterator)
            return self.wait_in(take_next, iterator)

        patches.replace(iterator_type, "__next__", take_and_count)

    def remove(self) -> None:
        """Counts no more."""
        _watching.clear()

    def wait_in(self, call: Callable[..., Result], *arguments: object) -> Result:
        """Calls something that waits for a batch; within it, further waits are the same."""
        thread = threading.get_ident()
        is_counted = thread in (self._stepping_thread, threading.main_thread().ident)
        if not is_counted or thread in self._inside:
            return call(*arguments)
        self._inside.add(thread)
        was_idle, began_s = self._is_idle(), self._now()
        try:
            return call(*arguments)
        finally:
            seconds = self._now() - began_s
            self._inside.discard(thread)
            low_s = seconds if was_idle else 0.0
            high_s = seconds if was_idle or self._is_idle() else 0.0
            before = self._waits.get(thread, (0.0, 0.0, 0.0))
            self._waits[thread] = (before[0] + seconds, before[1] + low_s, before[2] + high_s)

    def end_step(self, _count: int) -> None:
        """One more step has ended, in this thread."""
        thread, now_s = threading.get_ident(), self._now()
        waits = self._waits.get(thread) or self._waits.get(threading.main_thread().ident or 0)
        self._waits.clear()
        self._stepping_thread = thread
        self._sums.add(now_s - self._step_began_s, *(waits or (0.0, 0.0, 0.0)))
        self._step_began_s = now_s

    def fields(self) -> dict[str, Any]:
        """Its part of the record; num_workers is None where no DataLoader was read."""
        return {"batch_waits": {"num_workers": self._num_workers, "waits": self._sums.rows()}}

    def _note_workers(self, iterator: Any) -> None:
        num_workers = getattr(iterator, "_num_workers", 0)
        if isinstance(num_workers, int):
            self._num_workers = max(self._num_workers or 0, num_workers)

    def _is_idle(self) -> bool:
        """True if the current stream has nothing left to do; False where that cannot be asked."""
        cuda = self._torch.cuda
        try:
            return bool(
                cuda.is_initialized()
                and not cuda.is_current_stream_capturing()
                and cuda.current_stream().query()
            )
        except Exception:  # the program will meet it at its own next call
            return False


def wait_in(call: Callable[..., Result], *arguments: object) -> Result:
    """Calls something that waits for a batch; what records this process, if anything, counts it."""
    for waits in _watching:
        return waits.wait_in(call, *arguments)
    return call(*arguments)
