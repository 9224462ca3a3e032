"""Requests that run at once: one that fails beside others is tried again when they make room."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

Try = TypeVar("Try")


@dataclass(frozen=True, slots=True)
class _Start:
    """The state when a try began, and whether no other request ran then."""

    num_ended: int
    num_resumed: int
    is_alone: bool


class Turns:
    """Counts the requests that run, and lets one wait until another ends.

    Args:
        wait_s: a request waits this many seconds at most, in all.

    Attributes:
        num_started: requests until now.
    """

    def __init__(self, wait_s: float) -> None:
        self.num_started = 0
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._num_running = self._num_waiting = self._num_ended = self._num_resumed = 0

    @contextmanager
    def running(self) -> Iterator[tuple[int, bool]]:
        """Runs a request: its number, and whether no other runs."""
        with self._changed:
            self.num_started += 1
            self._num_running += 1
            self._num_resumed += 1
            number, is_alone = self.num_started, self._num_running == 1
        try:
            yield number, is_alone
        finally:
            with self._changed:
                self._num_running -= 1
                self._num_ended += 1
                self._changed.notify_all()

    def tries(self, rungs: Sequence[Try]) -> Iterator[Try]:
        """Yields what to try, one after another, and the last of them again: when another request
        has ended or waits, until a try has failed that ran beside no other.
        """
        deadline = time.monotonic() + self._wait_s
        for rung in rungs:
            start = self._start()
            yield rung
        while self._wait(start, deadline):
            start = self._start()
            yield rungs[-1]

    def _start(self) -> _Start:
        with self._changed:
            return _Start(self._num_ended, self._num_resumed, self._is_alone())

    def _is_alone(self) -> bool:
        """True if all other requests wait: what they held in their failed tries is let go."""
        return self._num_running - self._num_waiting == 1

    def _wait(self, start: _Start, deadline: float) -> bool:
        """Waits until more requests have ended than at the start of a failed try; False if there is
        nothing to wait for, or for too long.
        """
        with self._changed:
            if self._num_ended != start.num_ended:
                return True
            if self._is_alone():
                # One that waits now may have run, and held memory, during the try.
                return not start.is_alone or self._num_resumed != start.num_resumed
            self._num_waiting += 1
            try:
                return self._changed.wait_for(
                    lambda: self._num_ended != start.num_ended,
                    max(0.0, deadline - time.monotonic()),
                )
            finally:
                self._num_waiting -= 1
                self._num_resumed += 1
