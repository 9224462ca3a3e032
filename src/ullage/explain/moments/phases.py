"""What the program was doing at each position: the marks of a record split it into regions.

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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ullage.trace.lifetime import NEVER
from ullage.trace.model import Int64Array, Mark, MarkKind, UInt8Array


class Phase(enum.IntEnum):
    """An activity of the program."""

    OUTSIDE = 0
    FORWARD = 1
    LOSS = 2
    BACKWARD = 3
    AFTER_BACKWARD = 4
    OPTIMIZER = 5


@dataclass(frozen=True, slots=True)
class Regions:
    """Regions of the program in order, as columns; together they cover every position.

    Attributes:
        begin: the first position of the region.
        end: the first position after the region; NEVER for the last.
        phase: the `Phase` of the region.
        grad: whether the region's forward pass, or the last one before it, recorded gradients.
        before_forward: whether a forward pass ends the region.
        step: the number of steps that ended before the region.
        step_end: the position at which the region's step ends; NEVER if the record ends first.
    """

    begin: Int64Array
    end: Int64Array
    phase: UInt8Array
    grad: npt.NDArray[np.bool_]
    before_forward: npt.NDArray[np.bool_]
    step: Int64Array
    step_end: Int64Array

    def __len__(self) -> int:
        return len(self.begin)


# The phase that a mark opens in most phases; that of FORWARD_END depends on the current phase.
_OPENED_BY = {
    MarkKind.FORWARD_BEGIN: Phase.FORWARD,
    MarkKind.BACKWARD_BEGIN: Phase.BACKWARD,
    MarkKind.BACKWARD_END: Phase.AFTER_BACKWARD,
    MarkKind.OPTIMIZER_BEGIN: Phase.OPTIMIZER,
    MarkKind.OPTIMIZER_END: Phase.OUTSIDE,
    MarkKind.STEP: Phase.OUTSIDE,
}


def find_regions(marks: Sequence[Mark], first_position: int = 0) -> Regions:
    """Splits a record into regions at its marks.

    A forward pass inside backward is recomputation and belongs to backward.
    """
    opened: list[tuple[int, Phase, bool, int]] = [(first_position, Phase.OUTSIDE, False, 0)]
    step_ends: list[int] = []
    for mark in marks:
        _, phase, grad, _ = opened[-1]
        following = _following_phase(mark.kind, phase)
        if mark.kind is MarkKind.STEP:
            step_ends.append(mark.position)
        if mark.kind is MarkKind.FORWARD_BEGIN:
            grad = mark.grad is not False
        if following is not None:
            opened.append((mark.position, following, grad, len(step_ends)))
    begin = np.array([position for position, _, _, _ in opened], dtype=np.int64)
    phases = np.array([phase for _, phase, _, _ in opened], dtype=np.uint8)
    step = np.array([step for _, _, _, step in opened], dtype=np.int64)
    return Regions(
        begin=begin,
        end=np.append(begin[1:], NEVER),
        phase=phases,
        grad=np.array([grad for _, _, grad, _ in opened], dtype=np.bool_),
        before_forward=np.append(phases[1:] == Phase.FORWARD, np.False_),
        step=step,
        step_end=np.array([*step_ends, NEVER], dtype=np.int64)[step],
    )


def _following_phase(mark: MarkKind, phase: Phase) -> Phase | None:
    """Returns the phase that a mark opens; None where the phase does not change."""
    if mark is MarkKind.FORWARD_END:
        return Phase.LOSS if phase is Phase.FORWARD else None
    if mark is MarkKind.FORWARD_BEGIN and phase is Phase.BACKWARD:
        return None
    return _OPENED_BY[mark]


def region_of_births(regions: Regions, birth: Int64Array) -> Int64Array:
    """Returns the index of the region in which each block was allocated."""
    # A birth at position p is event p - 1, which occurred after the marks at positions up to p - 1.
    return np.maximum(np.searchsorted(regions.begin, birth - 1, side="right") - 1, 0)
