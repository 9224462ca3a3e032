"""The order in which a training program asks for memory: from a played step to the allocator.

What is reserved depends on all that came before: a first step without optimizer states, then the
states, then a second step among what the first one left.

    replay(timeline)        # Reserved(reserved_bytes=..., allocated_bytes=...)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from ullage.estimate.allocator import Allocator, Block
from ullage.estimate.timeline import Stretch, Timeline
from ullage.trace.category import Category

__all__ = ["Reserved", "replay"]

# Repetitions of a stretch that are replayed with all that comes and goes in them; later it mostly
# finds the blocks that it left the time before. Of the others what stays is replayed.
_WHOLE: Final = 1


class Reserved(NamedTuple):
    """What the allocator comes to.

    Attributes:
        reserved_bytes: segments.
        allocated_bytes: the most that was in blocks, which may be larger than what was asked for.
    """

    reserved_bytes: int
    allocated_bytes: int


def replay(timeline: Timeline, *, is_whole: bool = False) -> Reserved:
    """Two steps of a program: build, step, states, step.

    is_whole: every repetition is replayed with all that comes and goes in it, which takes longer.
    """
    player = _Player(timeline, None if is_whole else _WHOLE)
    model, states, passes, optimizer = _parts(timeline)
    for part in (model, passes, states, optimizer):
        player.play(part)
    player.drop_gradients(passes[0].begin)
    for part in (passes, optimizer):
        player.play(part)
    return Reserved(player.allocator.reserved_bytes, player.allocator.peak_allocated_bytes)


def _parts(timeline: Timeline) -> list[list[Stretch]]:
    """The model, the states, the passes, the optimizer's step."""
    builds = [begin for begin, phase in timeline.log.phases if phase == "build"]
    parts: list[list[Stretch]] = [[], [], [], []]
    for one in timeline.stretches:
        if one.phase == "build":
            parts[int(len(builds) > 1 and one.begin >= builds[1])].append(one)
        else:
            parts[3 if one.phase == "optimizer" else 2].append(one)
    return parts


class _Player:
    """Feeds an allocator with the events of stretches.

    Attributes:
        allocator: that is fed.
        live: blocks of each storage that are there, the oldest first.
        heirs: of each size, the storages that die: where a storage dies more often than it was
            made, as a layer's output does that the next layer lets go, one of these takes its part.
    """

    def __init__(self, timeline: Timeline, num_whole: int | None) -> None:
        self.log = timeline.log
        self.num_whole = num_whole
        self.allocator = Allocator()
        self.live: dict[int, list[Block]] = defaultdict(list)
        self.heirs: dict[int, list[int]] = defaultdict(list)
        log = timeline.log
        # By position: the index of the storage; of a death, minus that and one; None: nothing.
        self.events: list[int | None] = [None] * log.position
        first = next(begin for begin, phase in log.phases if phase != "build")
        for index, (birth, death) in enumerate(zip(log.births, log.deaths, strict=True)):
            if death < first:  # weights that were quantized: a program loads them quantized
                continue
            self.events[birth] = index
            if death < log.position:
                self.events[death] = -1 - index
                self.heirs[log.sizes[index]].append(index)

    def play(self, part: Sequence[Stretch]) -> None:
        """Plays stretches, one after the other."""
        sizes = self.log.sizes
        for one in part:
            events = [
                event
                for event in self.events[one.begin : one.end]
                if event is not None and sizes[event if event >= 0 else -1 - event]
            ]
            whole = one.repeats if self.num_whole is None else min(one.repeats, self.num_whole)
            is_latest = one.phase == "backward"
            for _ in range(whole):
                self._play(events, is_latest=is_latest)
            if whole < one.repeats:
                events = self._lasting(events, one)
            for _ in range(whole, one.repeats):
                self._play(events, is_latest=is_latest)

    def _lasting(self, events: Sequence[int], stretch: Stretch) -> list[int]:
        """The events of storages that do not both come and go in a stretch."""
        births, deaths = self.log.births, self.log.deaths
        indexes = ((event, event if event >= 0 else -1 - event) for event in events)
        return [
            event
            for event, index in indexes
            if births[index] < stretch.begin or deaths[index] >= stretch.end
        ]

    def _play(self, events: Sequence[int], *, is_latest: bool) -> None:
        sizes, streams, live = self.log.sizes, self.log.streams, self.live
        allocate, free = self.allocator.allocate, self.allocator.free
        for event in events:
            if event >= 0:
                live[event].append(allocate(sizes[event], streams.get(event, 0)))
                continue
            blocks = live[-1 - event] or self._inherit(sizes[-1 - event], is_latest=is_latest)
            if blocks:
                free(blocks.pop())

    def _inherit(self, size: int, *, is_latest: bool) -> list[Block]:
        """Blocks of a storage of that size of which there are several, or else of any."""
        for index in self.heirs[size]:
            blocks = self.live[index]
            if len(blocks) > 1:
                return [blocks.pop(-1 if is_latest else 0)]
        return next((self.live[index] for index in self.heirs[size] if self.live[index]), [])

    def drop_gradients(self, since: int) -> None:
        """zero_grad(): lets go of the gradients that the passes have made."""
        log = self.log
        for index, blocks in self.live.items():
            if log.categories[index] is Category.GRADIENT and log.births[index] >= since:
                while blocks:
                    self.allocator.free(blocks.pop())
