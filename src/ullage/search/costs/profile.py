"""The memory of each stretch of a step, and the part of it that blocks keep between their forward
and their backward: read from the record of a run.

A step is cut at the first and the last allocation of each block in forward and in backward. In a
stretch, a block between its forward and its backward is *live*, and the block that runs in it, if
any, is its *own*. The peak of the stretch less the memory that the live blocks keep is its *rest*,
which depends only on the treatment of its own block. So runs in which all blocks have the same
treatment give the peak of any mixture:

    peak = max over stretches of: rest[treatment of own block] + sum of kept[treatment] of live ones

A block has the same name in all runs, whatever its position in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ullage.explain.moments.course import Course, Phase, read_course
from ullage.explain.moments.levels import read_levels
from ullage.log.blocks import read_blocks
from ullage.log.model import EventKind, Int64Array, Record
from ullage.search.costs.blocks import Block, block_of_module

_NOBODY = -1
_NEVER = np.iinfo(np.int64).max


class Stretch(NamedTuple):
    """A part of a step: "forward" or "backward" of a block, the time "after" one of them, or the
    time "before" all of them.
    """

    what: str
    block: int = _NOBODY

    @property
    def own(self) -> int:
        """The block that runs in it; -1: none."""
        return self.block if self.what in {"forward", "backward"} else _NOBODY


@dataclass(frozen=True, slots=True)
class Profile:
    """The memory of one run.

    Attributes:
        kept_bytes: the memory that each block's forward keeps for its backward.
        rest_bytes: the rest of each stretch.
        live_blocks: which blocks are live in each stretch.
        peak_bytes: the peak of the allocated memory.
    """

    kept_bytes: Int64Array
    rest_bytes: Mapping[Stretch, int]
    live_blocks: Mapping[Stretch, npt.NDArray[np.bool_]]
    peak_bytes: int


class _Iteration(NamedTuple):
    """A forward and its backward, as events: its begin, its end, and the begin of backward."""

    begin: int
    end: int
    backward: int


def kept_by_module(record: Record) -> Mapping[str, int]:
    """The memory that each module's own forward keeps for backward, by its path; the largest of all
    iterations.
    """
    log = _Log(record, np.arange(len(record.modules) + 1))
    kept_bytes = np.zeros(len(record.modules) + 1, dtype=np.int64)
    for iteration in log.iterations:
        kept_bytes = np.maximum(kept_bytes, log.kept(iteration, len(kept_bytes)))
    return dict(zip(record.modules, kept_bytes.tolist(), strict=False))


def read_profile(record: Record, blocks: Sequence[Block]) -> Profile:
    """The profile of a run, over all of its iterations."""
    log = _Log(record, block_of_module(blocks, record.modules))
    num = len(blocks)
    kept_bytes = np.zeros(num, dtype=np.int64)
    for iteration in log.iterations:
        kept_bytes = np.maximum(kept_bytes, log.kept(iteration, num))
    rest: dict[Stretch, int] = {}
    live_blocks: dict[Stretch, npt.NDArray[np.bool_]] = {}
    first = log.iterations[0].begin if log.iterations else len(log.level)
    if first:
        rest[Stretch("before")] = int(log.level[:first].max())
        live_blocks[Stretch("before")] = np.zeros(num, dtype=np.bool_)
    for iteration in log.iterations:
        for stretch, is_live, peak in log.stretches(iteration, num):
            left = peak - int(kept_bytes[is_live].sum())
            if left >= rest.get(stretch, 0):
                rest[stretch], live_blocks[stretch] = left, is_live
    return Profile(kept_bytes, rest, live_blocks, int(log.level.max(initial=0)))


class _Log:
    """The events of the first device, with the label of each: a module or a block."""

    def __init__(self, record: Record, label_of_module: Int64Array) -> None:
        events = record.events
        device = int(events.device[0]) if len(events) else 0
        self._lives, course = read_blocks(record), read_course(record)
        self.level = read_levels(record, self._lives, device).allocated_bytes[1:]
        region = course.region_at(np.arange(len(events)))
        phase = course.phase[region]
        is_birth = (events.kind == EventKind.BLOCK) & (events.device == device)
        is_birth &= events.size_bytes > 0
        label = label_of_module[events.scope]
        is_forward = (phase == Phase.FORWARD) & course.grad[region]
        self._forward = np.where(is_birth & is_forward, label, _NOBODY)
        self._backward = np.where(is_birth & (phase == Phase.BACKWARD), label, _NOBODY)
        self._device = device
        self.iterations = list(_iterations(course, len(events)))

    def kept(self, iteration: _Iteration, count: int) -> Int64Array:
        """The memory allocated in forward and live when backward begins, by label."""
        lives = self._lives
        event = lives.birth
        is_in = (event >= iteration.begin) & (event < iteration.backward)
        is_in &= (lives.death >= iteration.backward) & (lives.device == self._device)
        label = np.where(is_in, self._forward[np.maximum(event, 0)], _NOBODY)
        is_in &= label >= 0
        kept_bytes = np.zeros(count, dtype=np.int64)
        np.add.at(kept_bytes, label[is_in], lives.size_bytes[is_in])
        return kept_bytes

    def stretches(
        self, iteration: _Iteration, count: int
    ) -> Iterator[tuple[Stretch, npt.NDArray[np.bool_], int]]:
        """The stretches of an iteration, with the live blocks and the peak of each."""
        forward = _extents(self._forward, iteration, count)
        backward = _extents(self._backward, iteration, count)
        # A block without a backward is live to the end.
        until = np.where(backward[0] == _NEVER, iteration.end, backward[0])
        cuts = {iteration.begin: Stretch("before")}
        for what, (begin, end) in (("forward", forward), ("backward", backward)):
            for block in np.flatnonzero(begin != _NEVER).tolist():
                cuts[int(end[block])] = Stretch(f"after {what}", block)
        for what, (begin, _) in (("forward", forward), ("backward", backward)):
            for block in np.flatnonzero(begin != _NEVER).tolist():
                cuts[int(begin[block])] = Stretch(what, block)
        places = sorted(cuts)
        for place, following in zip(places, [*places[1:], iteration.end], strict=True):
            if place < following:
                is_live = (forward[1] <= place) & (until >= following)
                yield cuts[place], is_live, int(self.level[place:following].max())


def _extents(
    labels: Int64Array, iteration: _Iteration, count: int
) -> tuple[Int64Array, Int64Array]:
    """For each label its first event, and the event after its last; _NEVER for none."""
    begin = np.full(count, _NEVER, dtype=np.int64)
    end = np.full(count, -1, dtype=np.int64)
    events = np.flatnonzero(labels[iteration.begin : iteration.end] >= 0) + iteration.begin
    np.minimum.at(begin, labels[events], events)
    np.maximum.at(end, labels[events], events + 1)
    return begin, np.where(end < 0, _NEVER, end)


def _iterations(course: Course, num_events: int) -> Iterator[_Iteration]:
    """Each begins with the first forward pass that records gradients after a backward."""
    begins: list[int] = []
    backwards: list[int] = []
    for place, phase, grad in zip(
        course.begin.tolist(), course.phase.tolist(), course.grad.tolist(), strict=True
    ):
        is_open = len(begins) > len(backwards)
        if phase == Phase.FORWARD and grad and not is_open:
            begins.append(max(place, 0))
        elif phase == Phase.BACKWARD and is_open:
            backwards.append(max(place, 0))
    ends = [*begins[1:], num_events]
    for begin, backward, end in zip(begins, backwards, ends, strict=False):
        if begin < backward:
            yield _Iteration(begin, end, backward)
