"""Kernels on several streams of one device share it: while two run, each is slowed so that both
together take as long as one after the other.

A piece of work that comes later is the one that gets longer; what was placed before stays.
"""

from __future__ import annotations

from collections import defaultdict

__all__ = ["Sharing"]

_KEPT = 64  # merged intervals of a stream: what is older than these has ended long ago


class Sharing:
    """The seconds in which the streams of a device compute."""

    def __init__(self) -> None:
        self._busy: defaultdict[int, list[list[float]]] = defaultdict(list)  # [begin, end] by lane

    def place(self, lane: int, start_s: float, taken_s: float) -> float:
        """When a piece of work ends that begins at `start_s` and takes `taken_s` alone."""
        others = [busy for other, busy in self._busy.items() if other != lane and busy]
        end_s = start_s + taken_s
        if any(busy[-1][1] > start_s for busy in others):
            end_s = _extended(others, start_s, taken_s)
        own = self._busy[lane]
        if own and own[-1][1] >= start_s:
            own[-1][1] = end_s
        else:
            own.append([start_s, end_s])
            del own[:-_KEPT]
        return end_s


def _extended(others: list[list[list[float]]], start_s: float, taken_s: float) -> float:
    """The end of a piece of work that also takes the seconds in which the others run beside it."""
    end_s = start_s + taken_s
    while True:
        beside_s = sum(_overlap(busy, start_s, end_s) for busy in others)
        if start_s + taken_s + beside_s <= end_s * (1 + 1e-12):
            return end_s
        end_s = start_s + taken_s + beside_s


def _overlap(busy: list[list[float]], start_s: float, end_s: float) -> float:
    seconds = 0.0
    for begin, end in reversed(busy):
        if end <= start_s:
            break
        seconds += max(0.0, min(end, end_s) - max(begin, start_s))
    return seconds
