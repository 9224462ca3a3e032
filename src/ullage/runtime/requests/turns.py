"""Requests that run at once: one that does not fit beside the others waits for one of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

Try = TypeVar("Try")


class Turns:
    """Counts the requests that run, and lets one wait until another ends.

    Args:
        wait_s: a request waits so many seconds at most, in all.

    Attributes:
        num_started: requests until now.
    """

    def __init__(self, wait_s: float) -> None:
        self.num_started = 0
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._num_running = self._num_waiting = self._num_ended = 0

    @contextmanager
    def running(self) -> Iterator[tuple[int, bool]]:
        """Runs a request: its number, and whether no other runs."""
        with self._changed:
            self.num_started += 1
            self._num_running += 1
            number, is_alone = self.num_started, self._num_running == 1
        try:
            yield number, is_alone
        finally:
            with self._changed:
                self._num_running -= 1
                self._num_ended += 1
                self._changed.notify_all()

    def after_others(self, again: Try) -> Iterator[Try]:
        """Yields what to try once more, each time that another request has ended since this call,
        until a try has failed that ran beside no other.
        """
        return self._repeat(again, self._num_ended, time.monotonic() + self._wait_s)

    def _repeat(self, again: Try, num_ended: int, deadline: float) -> Iterator[Try]:
        while self._wait(num_ended, deadline):
            num_ended = self._num_ended
            yield again

    def _wait(self, num_ended: int, deadline: float) -> bool:
        """Waits until more requests have ended, or all that run are waiting; False if there is
        nothing to wait for, or for too long.
        """
        with self._changed:
            if self._num_ended != num_ended:
                return True
            if self._num_running - self._num_waiting == 1:
                return False
            self._num_waiting += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(
                    lambda: self._num_ended != num_ended or self._num_waiting == self._num_running,
                    max(0.0, deadline - time.monotonic()),
                )
            finally:
                self._num_waiting -= 1
