"""The resources that messages take from the kernels beside them.

A collective of NCCL holds multiprocessors for as long as it runs, and moves its bytes through the
device's memory. A kernel that computes gets the multiprocessors that are left, one that moves
memory the bandwidth that is left; the message keeps its pace. So a kernel is slower by

    1 / (1 - the share that the messages beside it take)

where it is the one that computes, by the share of the multiprocessors, else of the bandwidth.
Messages on several streams take the sum of their shares.

    contention.stretch(start_s, taken_s, Bound.MULTIPROCESSORS)   # seconds beside what runs then
    contention.place_message(lane, start_s, end_s, load)          # seconds lost by stream

A kernel that comes after a message is stretched; kernels that were placed before a message that
runs beside them lose their seconds at the end of their stream. Either way as many are lost.

Source: NVIDIA/nccl, issue 689: its blocks do not share a multiprocessor with other kernels. The
law is tested with the slowdowns of arXiv:2507.03114 (tests/unit/clock/test_contention.py).
Ignores: that a message waits for a multiprocessor to become free, and is slowed by kernels; whole
rounds of thread blocks, by which one matrix product may take twice as long and another nothing
more.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

_MOST: Final = 0.9  # messages never take all of a device
_KEPT_KERNELS: Final = 1024  # as many as a stream's queue: what came before has ended
_KEPT_MESSAGES: Final = 64


class Bound(Enum):
    """The resource that limits a kernel."""

    MULTIPROCESSORS = "multiprocessors"
    BANDWIDTH = "bandwidth"


class Load(NamedTuple):
    """The resources of a device that a message takes while it runs.

    Attributes:
        multiprocessors: the share of them that it holds.
        bandwidth: the share of the memory's bandwidth that it uses.
        link: the link that it passes through: messages on one link share it.
    """

    multiprocessors: float
    bandwidth: float
    link: str


class _Message(NamedTuple):
    start_s: float
    end_s: float
    load: Load


class _Kernel(NamedTuple):
    start_s: float
    end_s: float
    bound: Bound


class Contention:
    """The messages and kernels of one device.

    Args:
        times: how many times as much longer kernels take as by the law: 0: messages cost nothing.
    """

    def __init__(self, times: float) -> None:
        self._times = times
        self._messages: defaultdict[int, deque[_Message]] = defaultdict(
            lambda: deque(maxlen=_KEPT_MESSAGES)
        )
        self._kernels: defaultdict[int, deque[_Kernel]] = defaultdict(
            lambda: deque(maxlen=_KEPT_KERNELS)
        )
        self._until_s = 0.0  # the end of the last message

    def stretch(self, start_s: float, taken_s: float, bound: Bound) -> float:
        """The seconds that a kernel takes which begins at `start_s` and takes `taken_s` alone."""
        if self._until_s <= start_s:
            return taken_s
        beside = [
            message for messages in self._messages.values() for message in _after(messages, start_s)
        ]
        left_s, now_s = taken_s, start_s
        changes = sorted({at for message in beside for at in message[:2] if at > start_s})
        for until_s in changes:
            slowness = self._slowness(
                (message.load for message in beside if message.start_s <= now_s < message.end_s),
                bound,
            )
            if now_s + left_s * slowness <= until_s:
                return now_s + left_s * slowness - start_s
            left_s -= (until_s - now_s) / slowness
            now_s = until_s
        return now_s + left_s - start_s

    def note_kernel(self, lane: int, start_s: float, end_s: float, bound: Bound) -> None:
        """A kernel has been placed."""
        self._kernels[lane].append(_Kernel(start_s, end_s, bound))

    def place_message(
        self, lane: int, start_s: float, end_s: float, load: Load
    ) -> Mapping[int, float]:
        """A message runs; returns the seconds that each stream loses whose kernels run beside it
        and were placed before.
        """
        self._messages[lane].append(_Message(start_s, end_s, load))
        self._until_s = max(self._until_s, end_s)
        lost = {}
        for other, kernels in self._kernels.items():
            seconds = self._lost(kernels, start_s, end_s, load)
            if seconds:
                lost[other] = seconds
        return lost

    def extend(self, lane: int, seconds: float) -> None:
        """The last kernel or message of a stream takes longer than was said when it was placed."""
        if kernels := self._kernels.get(lane):
            kernels[-1] = kernels[-1]._replace(end_s=kernels[-1].end_s + seconds)
        elif messages := self._messages.get(lane):
            messages[-1] = messages[-1]._replace(end_s=messages[-1].end_s + seconds)
            self._until_s = max(self._until_s, messages[-1].end_s)

    def _lost(self, kernels: deque[_Kernel], start_s: float, end_s: float, load: Load) -> float:
        """The seconds that the kernels of a stream lose: what they do beside the message takes
        longer, until it ends.
        """
        busy_s = longer_s = lost_s = 0.0
        for kernel in reversed(kernels):
            if kernel.end_s <= start_s:
                break
            beside_s = min(kernel.end_s, end_s) - max(kernel.start_s, start_s)
            if beside_s > 0:
                slowness = self._slowness((load,), kernel.bound)
                busy_s += beside_s
                longer_s += beside_s * (slowness - 1)
                lost_s += beside_s * (1 - 1 / slowness)
        if not busy_s:
            return 0.0
        # Where the stream ends before the message, its kernels run on beside it.
        room_s = max(0.0, end_s - kernels[-1].end_s)
        return min(longer_s, lost_s * (1 + room_s / busy_s))

    def _slowness(self, loads: Iterable[Load], bound: Bound) -> float:
        """The number of times longer a kernel takes beside messages."""
        is_held = bound is Bound.MULTIPROCESSORS
        share = sum(load.multiprocessors if is_held else load.bandwidth for load in loads)
        return 1 + self._times * (1 / (1 - min(share, _MOST)) - 1)


def _after(messages: deque[_Message], start_s: float) -> list[_Message]:
    later = []
    for message in reversed(messages):
        if message.end_s <= start_s:
            break
        later.append(message)
    return later
