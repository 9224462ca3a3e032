"""Tells trackers of a recording's steps: at most once a second, and never to the program's harm.

tracking = Tracking(torch, open_trackers(parse_choice("auto"), patches))
recorder.report.on_step = tracking.note_step
tracking.end()
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType

from ullage.record.session.settings import launcher_rank
from ullage.record.trackers.figures import Window
from ullage.record.trackers.tracker import Tracker

_INTERVAL_S = 1.0
_MAX_CHARS = 200
# What of a web address may be a secret: the user's name and password, and the query.
_SECRETS = re.compile(r"(?<=://)[^\s/@]*@|(?<=\?)\S+")


class Tracking:
    """The steps since the last report, and the trackers that it goes to.

    A tracker that raises is said on stderr once, and told nothing more.

    Args:
        torch: for the allocator's state.
        trackers: those that are told.
        clock: seconds.
        say: is told what a user is to know.
    """

    def __init__(
        self,
        torch: ModuleType,
        trackers: Sequence[Tracker],
        *,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._torch = torch
        self._trackers = list(trackers)
        self._titles = ", ".join(each.title for each in trackers)
        self._clock, self._say = clock, say or _say
        self._window = Window()
        self._due_s = clock()
        self._pid = os.getpid()
        self._has_logged = self._has_failed = False

    def note_step(self, allocated_bytes: int, reserved_bytes: int, seconds: float) -> None:
        """One more step has ended; raises nothing."""
        self._window.add(allocated_bytes, reserved_bytes, seconds)
        now_s = self._clock()
        if now_s >= self._due_s and self._trackers:
            self._due_s = now_s + _INTERVAL_S
            self._log()

    def _log(self, *, is_last: bool = False) -> None:
        try:
            figures = self._window.take(self._torch)
        except Exception as error:  # a torch without these counters
            self._trackers = []
            self._note_failure(f"no tracker is told of the steps: {_describe(error)}")
            return
        for tracker in list(self._trackers):
            try:
                self._has_logged |= tracker.log(figures)
            except Exception as error:
                if not is_last:  # at the end the program may have ended the run
                    self._turn_off(tracker, error)

    def end(self) -> None:
        """Logs what is not logged yet, and ends the trackers; raises nothing."""
        if os.getpid() != self._pid:
            return
        if self._trackers and not self._window.is_empty:
            self._log(is_last=True)
        for tracker in list(self._trackers):
            try:
                tracker.end()
            except Exception as error:
                self._turn_off(tracker, error)
        self._trackers = []
        is_silent = self._has_logged or self._has_failed or not self._titles
        if not is_silent and self._window.num_steps and not launcher_rank():
            self._say(f"no tracker was told of the steps: there was no active run ({self._titles})")

    def _turn_off(self, tracker: Tracker, error: Exception) -> None:
        self._trackers.remove(tracker)
        self._note_failure(f"{tracker.title} is told of no more steps: {_describe(error)}")

    def _note_failure(self, text: str) -> None:
        self._has_failed = True
        self._say(text)


def _describe(error: Exception) -> str:
    """The kind of an error and its first line, without what may be a secret."""
    line = _SECRETS.sub("...", str(error).strip().partition("\n")[0])[:_MAX_CHARS]
    name = type(error).__name__
    return f"{name}: {line}" if line else name


def _say(text: str) -> None:
    print(f"ullage: {text}", file=sys.stderr)
