"""The peak of each step, of each phase within it, and of each evaluation between steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np

from ullage.explain.moments.course import Course, Phase
from ullage.explain.moments.evaluations import (
    Evaluation,
    Round,
    find_evaluations,
    find_rounds_of_marks,
)
from ullage.explain.moments.levels import Levels, highest_between
from ullage.ground.protocol.plain import As, Mark
from ullage.log.blocks import NEVER
from ullage.log.model import Int64Array, MarkKind, Record

if TYPE_CHECKING:
    from ullage.log.measured import Measured


class Peak(NamedTuple):
    """The peaks of allocated and reserved memory over part of the program, in bytes."""

    allocated_bytes: Annotated[int, As("peak_allocated_bytes")]
    reserved_bytes: Annotated[int, As("peak_reserved_bytes")]


# The phases that reports name: the loss belongs to forward, clipping to backward.
PHASE_NAMES = MappingProxyType(
    {
        Phase.FORWARD: "forward",
        Phase.LOSS: "forward",
        Phase.BACKWARD: "backward",
        Phase.AFTER_BACKWARD: "backward",
        Phase.OPTIMIZER: "optimizer",
    }
)


@dataclass(frozen=True, slots=True)
class StepPeak:
    """The peak of one step.

    Attributes:
        index: the number of the step.
        peak: the peak, without the evaluation before the step.
        phases: the peak of each phase by name, without the evaluation before the step.
        is_complete: False for a last step that did not end.
        inputs: the input shapes of its forwards, with gradients where any has; empty where they
            were not recorded.
        follows_evaluation: whether an evaluation ran immediately before the step.
        roots: the root modules of these forwards. Steps of the same roots do the same work: where a
            program calls the parts of a model, or trains two models by turns, a step is not like
            the one before.
    """

    index: int
    peak: Annotated[Peak, Mark.FLAT]
    phases: Annotated[Mapping[str, Peak], Mark.NAMED]
    is_complete: bool
    inputs: Annotated[tuple[tuple[tuple[int, ...], ...], ...], Mark.NO_KEY] = ()
    follows_evaluation: Annotated[bool, Mark.NO_KEY] = False
    roots: Annotated[frozenset[int | None], Mark.NO_KEY] = frozenset()


@dataclass(frozen=True, slots=True)
class EvaluationPeak:
    """The peak of one evaluation; `before_step` is the number of the step that follows, or would
    follow.
    """

    before_step: int
    num_forwards: int
    peak: Annotated[Peak, Mark.FLAT]


def counted_steps(measured: Measured) -> tuple[StepPeak, ...]:
    """The steps of a record that has the allocator's counters alone, which know no phases."""
    return tuple(
        StepPeak(row.first, Peak(row.allocated_bytes, row.reserved_bytes), {}, is_complete=True)
        for row in measured.step_peaks
    )


def peak_per_step(
    record: Record, levels: Levels, course: Course
) -> tuple[tuple[StepPeak, ...], tuple[EvaluationPeak, ...]]:
    """Returns the peaks of the steps of a device, and of the evaluations between them.

    The first step begins with its first forward pass (set-up precedes it). Each later step begins
    where the previous step ended, or where the evaluation after that step ended.
    """
    marks, first = record.marks, record.first_position
    rounds = find_rounds_of_marks(marks)
    evaluations = find_evaluations(rounds)
    ends = {evaluation.row: evaluation.end for evaluation in evaluations}
    steps = [
        (row, round_, _begin(row, round_, ends))
        for row, round_ in enumerate(rounds)
        # One that did not end counts if it began.
        if round_.end is not None or any(each.begin >= ends.get(row, 0) for each in round_.forwards)
    ]
    ends_of = [NEVER if round_.end is None else round_.end for _, round_, _ in steps]
    begins = [begin for _, _, begin in steps]
    peaks = _peaks(levels, np.array([begins, ends_of], dtype=np.int64) - first)
    spans = np.array([(each.begin, each.end) for each in evaluations], dtype=np.int64)
    idle = _peaks(levels, spans.reshape(-1, 2).T - first)
    phases = _phase_peaks(levels, course, len(rounds), evaluations, first)
    indices = [mark.index for mark in marks if mark.kind is MarkKind.STEP]
    names = [row if index is None else index for row, index in enumerate([*indices, None])]
    return tuple(
        StepPeak(
            index=names[row],
            peak=peak,
            phases=MappingProxyType(phases[row]),
            is_complete=round_.end is not None,
            inputs=tuple(each.inputs for each in round_.own_forwards if each.inputs),
            follows_evaluation=row in ends,
            roots=round_.roots,
        )
        for (row, round_, _), peak in zip(steps, peaks, strict=True)
    ), tuple(
        EvaluationPeak(names[each.row], each.num_forwards, peak)
        for each, peak in zip(evaluations, idle, strict=True)
    )


def _begin(row: int, round_: Round, evaluation_ends: Mapping[int, int]) -> int:
    """Returns the position at which a step begins."""
    if row in evaluation_ends:
        return evaluation_ends[row]
    if row or not round_.forwards:
        return round_.begin if row or round_.end is None else round_.end
    return round_.forwards[0].begin


def _peaks(levels: Levels, spans: Int64Array) -> list[Peak]:
    """The peaks between events: (2, num) from before the first to before the last of each pair."""
    columns = (levels.allocated_bytes, levels.reserved_bytes)
    peaks = np.stack([highest_between(column, *spans) for column in columns], axis=1)
    return [Peak(*pair) for pair in peaks.tolist()]


def _phase_peaks(
    levels: Levels, course: Course, num_steps: int, evaluations: Sequence[Evaluation], first: int
) -> list[dict[str, Peak]]:
    """Returns the peak of each phase of each step; a region belongs to the step in which it begins.
    Those that begin in an evaluation are omitted.
    """
    result: list[dict[str, Peak]] = [{} for _ in range(num_steps)]
    for row, peak in enumerate(_peaks(levels, np.stack([course.begin, course.end]))):
        name = PHASE_NAMES.get(Phase(int(course.phase[row])))
        step = int(course.step[row])
        begin = max(int(course.begin[row]), 0) + first
        if name is None or step >= num_steps:
            continue
        if any(
            evaluation.row == step and evaluation.begin <= begin < evaluation.end
            for evaluation in evaluations
        ):
            continue
        known = result[step].get(name, peak)
        result[step][name] = Peak(*map(max, known, peak))
    return result
