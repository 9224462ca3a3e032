"""What the program was doing at each event of a trace: its steps and, where known, their phases.

Steps come from ullage's record, else from annotations that the program or torch wrote into the
snapshot ("ProfilerStep#3", "Optimizer.step#AdamW.step"), else from the stacks: a loop is a function
whose lines repeat (see rounds.py). Every report of steps states which source was used.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import numpy as np

from ullage.explain.moments.evaluations import find_rounds_of_marks
from ullage.explain.moments.phases import Phase, find_regions
from ullage.explain.moments.rounds import find_rounds
from ullage.explain.owners.matching import Match
from ullage.trace.model import MarkKind, Request
from ullage.trace.replay import BoolArray, Replay
from ullage.trace.snapshot import Int64Array, Snapshot, UInt8Array

_PROFILER_STEP, _OPTIMIZER_STEP = "ProfilerStep#", "Optimizer.step#"
_MAX_NAMED = 3


class StepSource(enum.Enum):
    """The source from which the steps of a trace are known."""

    RECORD = "recorded by ullage"
    ANNOTATIONS = "from the snapshot's annotations"
    STACKS = "guessed from lines that come again and again"
    NONE = "not known"


@dataclass(frozen=True, slots=True)
class Course:
    """Regions of a trace in order, as columns; together they cover every event.

    Attributes:
        begin: the first event of each region; the first is -1, before the trace.
        phase: the `Phase` of each region; OUTSIDE where only steps are known.
        grad: whether the forward pass recorded gradients.
        step_ends: the event before which each step ended, ascending.
        source: the source from which the steps are known.
        has_phases: whether the phases are known too.
        requests: the requests that were replayed against the program, each between two events.
        alike: the numbers of the steps that did the same work as the last; None: all.
    """

    begin: Int64Array
    phase: UInt8Array
    grad: BoolArray
    step_ends: Int64Array
    source: StepSource
    has_phases: bool
    requests: tuple[Request, ...] = ()
    alike: Int64Array | None = None

    @property
    def num_steps(self) -> int:
        """The number of steps that ended."""
        return len(self.step_ends)

    def region_at(self, event: Int64Array) -> Int64Array:
        """Returns the index of the region that contains each event."""
        return np.maximum(np.searchsorted(self.begin, event, side="right") - 1, 0)

    def step_at(self, event: Int64Array) -> Int64Array:
        """Returns the number of steps that had ended before each event."""
        return np.searchsorted(self.step_ends, event, side="right")

    def describe(self, event: int) -> str:
        """Describes when an event occurred: "step 2, backward", or "requests.jsonl:7, forward";
        returns an empty string where that is not known.
        """
        number = np.array([event])
        step = int(self.step_at(number)[0])
        parts = []
        if self.source is not StepSource.NONE and event >= 0:
            parts.append(f"after step {step - 1}" if step == self.num_steps else f"step {step}")
        phase = Phase(int(self.phase[self.region_at(number)[0]]))
        if self.has_phases and phase in _PHASE_NAMES:
            parts = [f"step {step}"] if self.source is not StepSource.NONE else []
            parts.append(_PHASE_NAMES[phase])
        if self.requests:
            running = [
                request.where for request in self.requests if request.begin <= event < request.end
            ]
            parts = [_name(running), *parts[1:]] if running else ["before and between requests"]
        return ", ".join(parts)


_PHASE_NAMES = {
    Phase.FORWARD: "forward",
    Phase.LOSS: "after forward",
    Phase.BACKWARD: "backward",
    Phase.AFTER_BACKWARD: "after backward",
    Phase.OPTIMIZER: "optimizer",
}


def _name(running: list[str]) -> str:
    """Names the requests that ran concurrently: "requests.jsonl:3, 4, 7 and 5 more"."""
    first, *others = running[:_MAX_NAMED]
    file = first.rpartition(":")[0]
    lines = [first, *(other.removeprefix(f"{file}:") for other in others)]
    more = f" and {len(running) - _MAX_NAMED} more" if len(running) > _MAX_NAMED else ""
    return ", ".join(lines) + more


def find_course(snapshot: Snapshot, replay: Replay, device: int, match: Match | None) -> Course:
    """Finds what the program was doing at each event."""
    if match is not None:
        return _recorded(match, replay)
    annotated = _annotated(snapshot, replay, device)
    if annotated is not None:
        return annotated
    ends = find_rounds(snapshot.stacks, replay)
    source = StepSource.STACKS if len(ends) else StepSource.NONE
    return _without_phases(ends, source)


def _recorded(match: Match, replay: Replay) -> Course:
    record = match.record
    regions = find_regions(record.marks, record.first_position)
    steps = [mark.position for mark in record.marks if mark.kind is MarkKind.STEP]
    rounds = find_rounds_of_marks(record.marks)[: len(steps)]
    alike = [row for row, round_ in enumerate(rounds) if round_.roots == rounds[-1].roots]
    begin = match.event_after(regions.begin, replay.num_events)
    begin[0] = -1
    return Course(
        begin=np.maximum.accumulate(begin),
        phase=regions.phase,
        grad=regions.grad,
        step_ends=match.event_after(np.array(steps, dtype=np.int64), replay.num_events),
        source=StepSource.RECORD if steps else StepSource.NONE,
        has_phases=True,
        requests=_in_events(record.requests, match, replay.num_events),
        alike=np.array(alike, dtype=np.int64),
    )


def _in_events(requests: tuple[Request, ...], match: Match, num_events: int) -> tuple[Request, ...]:
    begins, ends = (
        match.event_after(np.array(positions, dtype=np.int64), num_events).tolist()
        for positions in (
            [request.begin for request in requests],
            [request.end for request in requests],
        )
    )
    return tuple(
        replace(request, begin=begin, end=end)
        for request, begin, end in zip(requests, begins, ends, strict=True)
    )


def _annotated(snapshot: Snapshot, replay: Replay, device: int) -> Course | None:
    """Finds steps by the times of annotations; returns None where there are none."""
    times = snapshot.events_of(device).time_us
    if not len(times) or not times.any():
        return None
    # A profiled iteration ends where the next begins; an optimizer's step ends an iteration.
    starts = [a.time_us for a in snapshot.annotations
             if a.name.startswith(_PROFILER_STEP) and a.stage == "START"]  # fmt: skip
    ended = [a.time_us for a in snapshot.annotations
             if a.name.startswith(_OPTIMIZER_STEP) and a.stage == "END"]  # fmt: skip
    moments = sorted(starts)[1:] if len(starts) > 1 else sorted(ended)
    inside = [m for m in moments if times[0] <= m <= times[-1] or m == moments[-1] >= times[-1]]
    if not inside:
        return None
    return _without_phases(np.searchsorted(times, np.array(inside)), StepSource.ANNOTATIONS)


def _without_phases(step_ends: Int64Array, source: StepSource) -> Course:
    return Course(
        begin=np.array([-1], dtype=np.int64),
        phase=np.array([Phase.OUTSIDE], dtype=np.uint8),
        grad=np.zeros(1, dtype=np.bool_),
        step_ends=step_ends.astype(np.int64),
        source=source,
        has_phases=False,
    )
