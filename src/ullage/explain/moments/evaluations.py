"""Evaluations of a training program: the forwards without gradients that belong to no step.

Some forwards without gradients belong to the step itself: a frozen encoder, a teacher, a rollout.
A forward before a step's own forward, or after the last step, is an evaluation if its module

- is trained, and runs in evaluation mode; or
- runs without gradients in at most half of the steps.

A single step does not show how often a module runs: only the first criterion applies there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ullage.log.blocks import NEVER
from ullage.log.model import Mark, MarkKind


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Forwards without gradients between two steps, before the first step or after the last.

    Attributes:
        row: the index, from 0, of the step that follows the evaluation; after the last step, the
            number of steps that ended.
        begin, end: the positions between which the evaluation ran, until the step's own first
            forward begins.
        num_forwards: the number of forwards of root modules.
    """

    row: int
    begin: int
    end: int
    num_forwards: int


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward of a root module, with the fields of its marks."""

    begin: int
    end: int
    grad: bool
    is_training_mode: bool | None
    module: int | None
    inputs: tuple[tuple[int, ...], ...] | None
    has_failed: bool


@dataclass(frozen=True, slots=True)
class Round:
    """The forwards up to the end of one step, and whether a backward ran; `end` is None where the
    record ends first.
    """

    begin: int
    end: int | None
    has_backward: bool
    forwards: tuple[Forward, ...]

    @property
    def own_forwards(self) -> tuple[Forward, ...]:
        """The forwards with gradients; all where none has any."""
        return tuple(each for each in self.forwards if each.grad) or self.forwards

    @property
    def roots(self) -> frozenset[int | None]:
        """The modules of its own forwards: rounds with the same do the same work."""
        return frozenset(each.module for each in self.own_forwards)


def find_rounds_of_marks(marks: Sequence[Mark]) -> tuple[Round, ...]:
    """Splits the marks at the ends of steps; the last round has no end and may be empty."""
    rows = [row for row, mark in enumerate(marks) if mark.kind is MarkKind.STEP]
    begins = [0, *(row + 1 for row in rows)]
    return tuple(
        _round(marks[begin:stop], marks[max(begin - 1, 0)].position if marks else 0)
        for begin, stop in itertools.zip_longest(begins, [row + 1 for row in rows])
    )


def _round(marks: Sequence[Mark], begin: int) -> Round:
    forwards: list[Forward] = []
    opened: Mark | None = None
    is_in_backward = has_backward = False
    for mark in marks:
        if mark.kind in (MarkKind.BACKWARD_BEGIN, MarkKind.BACKWARD_END):
            is_in_backward = mark.kind is MarkKind.BACKWARD_BEGIN
            has_backward = True
        elif mark.kind is MarkKind.FORWARD_BEGIN and not is_in_backward:
            opened = mark
        elif mark.kind is MarkKind.FORWARD_END and opened is not None:
            forwards.append(_forward(opened, mark))
            opened = None
    if opened is not None:  # the record ends inside this forward
        forwards.append(_forward(opened, marks[-1]))
    is_whole = bool(marks) and marks[-1].kind is MarkKind.STEP
    return Round(begin, marks[-1].position if is_whole else None, has_backward, tuple(forwards))


def _forward(begin: Mark, end: Mark) -> Forward:
    return Forward(
        begin.position,
        end.position,
        begin.grad is not False,
        begin.is_training_mode,
        begin.module,
        end.inputs,
        end.has_failed,
    )


def find_evaluations(rounds: Sequence[Round]) -> tuple[Evaluation, ...]:
    """Finds the evaluations of a training program, in order; none if the program does not train."""
    if not any(round_.has_backward for round_ in rounds):
        return ()
    trained = {each.module for round_ in rounds if round_.has_backward
               for each in round_.forwards if each.grad}  # fmt: skip
    frequent = _frequent([round_ for round_ in rounds if round_.end is not None])
    evaluations = []
    for row, round_ in enumerate(rounds):
        idle = list(_idle_forwards(round_))
        numbers = [
            number
            for number, each in enumerate(idle)
            if (each.module in trained and each.is_training_mode is False)
            or (frequent is not None and each.module not in frequent)
        ]
        if numbers:
            last = numbers[-1]  # earlier idle forwards belong to the evaluation
            begin = round_.begin if row else idle[0].begin
            own = round_.forwards[last + 1 :]
            end = own[0].begin if own else round_.end if round_.end is not None else NEVER
            evaluations.append(Evaluation(row, begin, end, last + 1))
    return tuple(evaluations)


def _idle_forwards(round_: Round) -> Iterator[Forward]:
    """Yields the forwards before the step's own; without a backward, all that train nothing."""
    if round_.has_backward:
        return itertools.takewhile(lambda each: not each.grad, round_.forwards)
    return itertools.takewhile(
        lambda each: not each.grad or each.is_training_mode is False, round_.forwards
    )


def _frequent(steps: Sequence[Round]) -> set[int | None] | None:
    """Returns the modules that run without gradients in most steps; None with too few steps."""
    if len(steps) < 2:
        return None
    ran = [{each.module for each in step.forwards if not each.grad} for step in steps]
    return {module for module in set().union(*ran)
            if 2 * sum(module in modules for modules in ran) > len(ran)}  # fmt: skip
