"""The course of a program over the events of a log: its steps and, where known, their phases.

Steps come from ullage's record, else from annotations that the program or torch wrote into the
snapshot ("ProfilerStep#3", "Optimizer.step#AdamW.step"), else from the stacks: a loop is a function
whose lines repeat (see rounds.py). Every report of steps states which source was used.

The marks of a record split it into regions:

OUTSIDE         before a forward pass, after a step
FORWARD         inside a root module's forward
LOSS            after forward, until backward, the optimizer, the next forward or the step's end
BACKWARD        inside backward
AFTER_BACKWARD  after backward, until the optimizer or the next forward: clipping, unscaling,
                the next micro-batch
OPTIMIZER       inside optimizer.step()
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import numpy as np

from ullage.explain.moments.evaluations import find_rounds_of_marks
from ullage.log.blocks import NEVER, BoolArray
from ullage.log.model import Int64Array, MarkKind, Record, Request, UInt8Array

_MAX_NAMED = 3


class Phase(enum.IntEnum):
    """An activity of the program."""

    OUTSIDE = 0
    FORWARD = 1
    LOSS = 2
    BACKWARD = 3
    AFTER_BACKWARD = 4
    OPTIMIZER = 5


class StepSource(enum.Enum):
    """The source from which the steps of a trace are known."""

    RECORD = "recorded by ullage"
    ANNOTATIONS = "from the snapshot's annotations"
    STACKS = "guessed from lines that come again and again"
    NONE = "not known"


@dataclass(frozen=True, slots=True)
class Course:
    """Regions of a log in order, as columns; together they cover every event.

    Attributes:
        begin: the first event of each region; the first is -1, before the log.
        phase: the `Phase` of each region; OUTSIDE where only steps are known.
        grad: whether the region's forward pass, or the last one before it, recorded gradients.
        step: the number of steps that ended before the region.
        step_ends: the event before which each step ended, ascending.
        source: the source from which the steps are known.
        has_phases: whether the phases are known too.
        requests: the requests that were replayed against the program, each between two events.
        alike: the numbers of the steps that did the same work as the last; None: all.
    """

    begin: Int64Array
    phase: UInt8Array
    grad: BoolArray
    step: Int64Array
    step_ends: Int64Array
    source: StepSource
    has_phases: bool
    requests: tuple[Request, ...] = ()
    alike: Int64Array | None = None

    @property
    def end(self) -> Int64Array:
        """The first event after each region; NEVER for the last."""
        return np.append(self.begin[1:], NEVER)

    @property
    def before_forward(self) -> BoolArray:
        """True if a forward pass ends each region."""
        return np.append(self.phase[1:] == Phase.FORWARD, np.False_)

    @property
    def step_end(self) -> Int64Array:
        """The event before which the step of each region ended; NEVER where the log ends first."""
        return np.append(self.step_ends, NEVER)[self.step]

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


def read_course(record: Record) -> Course:
    """Reads the course of a program over the events of a record from its marks.

    A forward pass inside backward is recomputation and belongs to backward.
    """
    first = record.first_position
    opened: list[tuple[int, Phase, bool, int]] = [(-1, Phase.OUTSIDE, False, 0)]
    step_ends: list[int] = []
    for mark in record.marks:
        _, phase, grad, _ = opened[-1]
        following = _following_phase(mark.kind, phase)
        if mark.kind is MarkKind.STEP:
            step_ends.append(max(mark.position - first, 0))
        if mark.kind is MarkKind.FORWARD_BEGIN:
            grad = mark.grad is not False
        if following is not None:
            opened.append((mark.position - first, following, grad, len(step_ends)))
    begins, phases, grads, steps = zip(*opened, strict=True)
    rounds = find_rounds_of_marks(record.marks)[: len(step_ends)]
    alike = [row for row, round_ in enumerate(rounds) if round_.roots == rounds[-1].roots]
    return Course(
        # Marks may be older than the first event of a log that was cut.
        begin=np.maximum.accumulate(np.maximum(begins, -1)).astype(np.int64),
        phase=np.array(phases, dtype=np.uint8),
        grad=np.array(grads, dtype=np.bool_),
        step=np.array(steps, dtype=np.int64),
        step_ends=np.array(step_ends, dtype=np.int64),
        source=StepSource.RECORD if step_ends else StepSource.NONE,
        has_phases=True,
        requests=tuple(
            replace(request, begin=request.begin - first, end=request.end - first)
            for request in record.requests
        ),
        alike=np.array(alike, dtype=np.int64),
    )


# The phase that a mark opens in most phases; that of FORWARD_END depends on the current phase.
_OPENED_BY = {
    MarkKind.FORWARD_BEGIN: Phase.FORWARD,
    MarkKind.BACKWARD_BEGIN: Phase.BACKWARD,
    MarkKind.BACKWARD_END: Phase.AFTER_BACKWARD,
    MarkKind.OPTIMIZER_BEGIN: Phase.OPTIMIZER,
    MarkKind.OPTIMIZER_END: Phase.OUTSIDE,
    MarkKind.STEP: Phase.OUTSIDE,
}


def _following_phase(mark: MarkKind, phase: Phase) -> Phase | None:
    if mark is MarkKind.FORWARD_END:
        return Phase.LOSS if phase is Phase.FORWARD else None
    if mark is MarkKind.FORWARD_BEGIN and phase is Phase.BACKWARD:
        return None
    return _OPENED_BY[mark]
