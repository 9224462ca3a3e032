"""Rules about gradients that live longer than they are needed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ullage.explain.moments.course import Phase
from ullage.explain.rules.case import Case
from ullage.explain.rules.rule import Found, Kind, Rule
from ullage.ground.units import format_bytes
from ullage.log.blocks import BoolArray
from ullage.log.model import Category
from ullage.log.snapshot import Int64Array

_ZERO_GRAD = "Optimizer.zero_grad#"
_MIN_STEPS = 2


def _find_missing(case: Case) -> Iterator[Found]:
    if not _calls_zero_grad(case):
        yield from _find_stale(case, "nothing sets gradients to None between steps")


def _find_not_none(case: Case) -> Iterator[Found]:
    if _calls_zero_grad(case):
        yield from _find_stale(case, "zero_grad() fills gradients with zeros, or comes too late")


def _calls_zero_grad(case: Case) -> bool:
    notes = case.report.snapshot.annotations
    return any(note.name.startswith(_ZERO_GRAD) for note in notes)


def _find_stale(case: Case, why: str) -> Iterator[Found]:
    """Gradients of one step that are still live when the next step has ended: what goes before is
    held by a name of the program's, which is bound anew.
    """
    course = case.device.course
    # Without an optimizer, gradients may be what the program is for, as in a saliency map.
    has_optimizer = bool((course.phase == Phase.OPTIMIZER).any())
    if not case.is_known or course.num_steps < _MIN_STEPS or not has_optimizer:
        return
    # DDP makes its buckets, of which gradients are views, outside of backward, and keeps them.
    is_gradient = case.is_of(Category.GRADIENT) & case.born_in(Phase.BACKWARD)
    backwards = _backward_of_steps(case)
    stale = np.zeros(len(is_gradient), dtype=np.bool_)
    blocks = case.device.replay.blocks
    ends = np.append(course.step_ends, case.device.replay.num_events)
    for step, (begin, _) in backwards.items():
        is_there = blocks.is_live(begin) & (blocks.death >= ends[step])
        stale |= is_gradient & is_there & (case.step < step)
    size = case.sum(stale)
    if not case.is_worth(size):
        return
    gain = _gain(case, stale, backwards)
    numbers = np.flatnonzero(stale)
    yield Found(
        what=f"{why}: {format_bytes(size)} of gradients live through the next forward pass",
        evidence=(
            (
                f"{len(numbers)} gradients of step {int(case.step[numbers].min())} are live when "
                f"the backward of a later step spans; {course.num_steps} steps in all"
            ),
        ),
        gain_bytes=gain,
        blocks=numbers,
    )


def _backward_of_steps(case: Case) -> dict[int, tuple[int, int]]:
    """The first event of each step's backward, and the last."""
    course = case.device.course
    backwards_by_step: dict[int, tuple[int, int]] = {}
    ends = np.append(course.begin[1:], case.device.replay.num_events)
    for region in np.flatnonzero(course.phase == Phase.BACKWARD).tolist():
        begin, end = int(course.begin[region]), int(ends[region])
        step = int(course.step_at(np.array([begin]))[0])
        backwards_by_step[step] = (backwards_by_step.get(step, (begin, end))[0], end)
    return backwards_by_step


def _gain(case: Case, stale: BoolArray, backwards: dict[int, tuple[int, int]]) -> int:
    """The bytes that the peak would lose if each gradient went after its step, and came back in the
    next backward as far into it as it first came.
    """
    levels, blocks = case.device.levels.allocated_bytes.copy(), case.device.replay.blocks
    numbers = np.flatnonzero(stale)
    changes = np.zeros(len(levels) + 1, dtype=np.int64)
    spans = np.array([backwards.get(int(s), (0, 0)) for s in case.step[numbers]], dtype=np.float64)
    length = np.maximum(spans[:, 1] - spans[:, 0], 1)
    part = np.clip((blocks.birth[numbers] - spans[:, 0]) / length, 0, 1)
    ends: Int64Array = case.device.course.step_ends
    for step, (begin, end) in backwards.items():
        if step == 0:
            continue
        old = (case.step[numbers] < step) & (blocks.death[numbers] > begin)
        back = (begin + part[old] * (end - begin)).astype(np.int64)
        ends_at = np.full(int(old.sum()), int(ends[step - 1]))
        back = np.minimum(np.maximum(back, ends_at), blocks.death[numbers][old])
        np.subtract.at(changes, ends_at, blocks.size_bytes[numbers][old])
        np.add.at(changes, back, blocks.size_bytes[numbers][old])
    return int(levels.max() - (levels + np.cumsum(changes[:-1])).max())


RULES = (
    Rule(
        code="UL103",
        title="gradients are never set to None",
        kind=Kind.FAULT,
        meaning="Without optimizer.zero_grad() gradients of all steps are added up, which is also "
        "wrong; and they take memory while the forward pass fills the rest of it.",
        evidence="Gradients of one step are live when the backward pass of the next spans, and "
        "an optimizer steps, and the snapshot has no call of its zero_grad().",
        cost="nothing",
        change="call optimizer.zero_grad() after each optimizer.step()",
        find=_find_missing,
    ),
    Rule(
        code="UL104",
        title="gradients are zeroed, not freed, between steps",
        kind=Kind.FAULT,
        meaning="zero_grad(set_to_none=False) keeps the gradients' memory through the next forward "
        "pass, as does a zero_grad() right before backward().",
        evidence="Gradients of one step are live when the backward pass of the next spans, though "
        "zero_grad() is called.",
        cost="nothing; a parameter without gradient has .grad None, not zeros",
        change="call zero_grad() (set_to_none is its default) right after optimizer.step()",
        find=_find_not_none,
    ),
)
