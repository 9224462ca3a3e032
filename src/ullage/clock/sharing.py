"""Kernels on several streams of one device share it: while two run, each is slowed so that both
together take as long as one after the other. So do messages on one link.

    end_s, lost = sharing.place(lane, start_s, taken_s)

The streams get equal parts. What was placed before and runs beside a new piece of work loses what
that takes, at the end of its stream, unless a pause of the stream makes up for it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Final

_KEPT: Final = 64  # merged intervals of a stream: what is older than these has ended long ago
_ALIKE_S: Final = 1e-9  # of begins and ends: the same moment


class Sharing:
    """The seconds in which the streams of a device, or the messages on a link, are busy."""

    def __init__(self) -> None:
        self._busy: defaultdict[int, deque[list[float]]] = defaultdict(lambda: deque(maxlen=_KEPT))

    def place(self, lane: int, start_s: float, taken_s: float) -> tuple[float, Mapping[int, float]]:
        """When a piece of work ends that begins at `start_s` and takes `taken_s` alone; and the
        seconds that other streams lose by it (`extend` notes them).
        """
        end_s, lost = start_s + taken_s, {}
        others = [
            _Other(number, busy, start_s)
            for number, busy in self._busy.items()
            if number != lane and busy and busy[-1][1] > start_s + _ALIKE_S
        ]
        if others:
            end_s = _share(others, start_s, taken_s)
            lost = {other.lane: seconds for other in others if (seconds := other.lost_s())}
        own = self._busy[lane]
        if own and own[-1][1] >= start_s - _ALIKE_S:
            own[-1][1] = end_s
        else:
            own.append([start_s, end_s])
        return end_s, lost

    def extend(self, lane: int, seconds: float) -> None:
        """The last piece of work of a stream takes longer than was said when it was placed."""
        self._busy[lane][-1][1] += seconds


class _Other:
    """The work that another stream still has to do from a moment on."""

    def __init__(self, lane: int, busy: deque[list[float]], start_s: float) -> None:
        self.lane = lane
        self._later: deque[tuple[float, float]] = deque()
        for begin, end in reversed(busy):
            if end <= start_s + _ALIKE_S:
                break
            self._later.appendleft((max(begin, start_s), end))
        self._behind_s = 0.0
        self.begin_s, self.left_s, self._end_s = 0.0, 0.0, start_s
        self._next()

    @property
    def is_done(self) -> bool:
        return not self.left_s

    def _next(self) -> None:
        """Its next interval; a pause before it makes up for what it is behind."""
        if not self._later:
            self.left_s = 0.0
            return
        begin, end = self._later.popleft()
        paused_s = begin - self._end_s if self._behind_s else 0.0
        self._behind_s = max(0.0, self._behind_s - paused_s)
        self._end_s = end
        self.begin_s, self.left_s = begin + self._behind_s, end - begin

    def run(self, seconds: float, done_s: float) -> None:
        """This many seconds pass, in which it does this much."""
        self._behind_s += seconds - done_s
        self.left_s -= done_s
        if self.left_s <= _ALIKE_S:
            self._next()

    def lost_s(self) -> float:
        """By how much it ends later."""
        while self._later:
            self._next()
        return self._behind_s


def _share(others: list[_Other], start_s: float, taken_s: float) -> float:
    """The end of a piece of work that gets an equal part of the device."""
    now_s, left_s = start_s, taken_s
    while left_s > 0:
        waiting = [other for other in others if not other.is_done]
        busy = [other for other in waiting if other.begin_s <= now_s + _ALIKE_S]
        parts = len(busy) + 1
        step_s = left_s * parts
        for other in waiting:
            until_s = other.left_s * parts / (parts - 1) if other in busy else other.begin_s - now_s
            step_s = min(step_s, until_s)
        for other in busy:
            other.run(step_s, step_s * (parts - 1) / parts)
        is_last = step_s >= left_s * parts
        now_s, left_s = now_s + step_s, 0.0 if is_last else left_s - step_s / parts
    return now_s
