"""Calls that may wait for a network, in a thread of their own, so that no step waits for them.

background = Background()
background.hand(lambda: client.log_batch(...))      # returns at once
background.end()
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from queue import Full, Queue

MAX_QUEUED = 64
_END_S = 5.0


class Background:
    """A short queue of calls; the thread begins with the first and ends with an error.

    end_s: how long the end waits for what is queued.
    """

    def __init__(self, end_s: float = _END_S) -> None:
        self._end_s = end_s
        self._queue: Queue[Callable[[], object] | None] = Queue(MAX_QUEUED)
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._error: Exception | None = None

    def hand(self, call: Callable[[], object]) -> None:
        """Queues a call.

        Raises:
            Exception: what an earlier call has raised.
            TimeoutError: the queue is full.
        """
        self._raise_error()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="ullage-tracker")
            self._thread.start()
        try:
            self._queue.put_nowait(call)
        except Full:
            raise TimeoutError(f"{MAX_QUEUED} calls wait for an answer") from None

    def end(self) -> None:
        """Waits for what is queued, some seconds at most.

        Raises:
            Exception: what a call has raised.
            TimeoutError: not all was delivered in time.
        """
        thread, self._thread = self._thread, None
        if thread is None or os.getpid() != self._pid:  # a forked child has no such thread
            return
        due_s = time.monotonic() + self._end_s
        while self._queue.full() and thread.is_alive() and time.monotonic() < due_s:
            time.sleep(0.01)
        if thread.is_alive() and not self._queue.full():
            self._queue.put_nowait(None)
            thread.join(max(due_s - time.monotonic(), 0.0))
        self._raise_error()
        if thread.is_alive():
            raise TimeoutError(f"not everything was delivered in {self._end_s:g} s")

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            try:
                call()
            except Exception as error:  # it is raised where the next call is handed over
                self._error = error
                return
