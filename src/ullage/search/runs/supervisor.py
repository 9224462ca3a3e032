"""Starts a program again where it ends out of memory, under the next rung of a ladder.

    result = supervise(start, plans, resume=("--resume", "last.pt"), say=print)

Rung 0 is the unchanged program. It goes on from its own checkpoint, by the words that it takes for
that. There are as many starts as rungs: a program that fails on the last one has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from shlex import join
from typing import Generic, TypeVar

from ullage.act.guard.ladder import AS_IT_IS
from ullage.act.techniques.plan import Plan

Result = TypeVar("Result")
_NO_BLOCKS = "; the default rungs are for a model with repeated blocks that was called"


@dataclass(frozen=True, slots=True)
class Start(Generic[Result]):
    """A start of the program that has ended.

    Attributes:
        result: whatever it came to.
        failure: who ran out of memory, if that ended it: "rank 1 ran out of memory (2.00 GiB asked
            for)"; None: it ended well, or for another reason, or was asked to.
        rungs: the plans that it chose itself, where it was given none.
    """

    result: Result
    failure: str | None
    rungs: tuple[Plan, ...] = ()


def supervise(
    start: Callable[[int, Plan | None, tuple[str, ...]], Start[Result]],
    plans: Sequence[Plan] | None,
    resume: tuple[str, ...],
    say: Callable[[str], None],
) -> Result:
    """Starts a program until it ends otherwise than out of memory, or no rung is left.

    Args:
        start: starts it on a rung of this number, with its plan, if there is one, and words that
            are appended to its own.
        plans: of the rungs after the first; None: those that the program chooses.
        resume: the words that a restart appends.
        say: called with a line for each start that ran out of memory.

    Returns:
        the result of the last start.
    """
    rung, plan, words = 0, None, tuple[str, ...]()
    while True:
        started = start(rung, plan, words)
        if started.failure is None:
            return started.result
        if plans is None:
            plans = started.rungs
        name = f"rung {rung} ({AS_IT_IS if plan is None else plan.summary})"
        if rung == len(plans):
            why = _NO_BLOCKS * (not plans)
            say(f"ullage: guard: {started.failure} on {name}; no rung is left{why}")
            return started.result
        plan, rung, words = plans[rung], rung + 1, resume
        say(
            f"ullage: guard: {started.failure} on {name}: started again on rung {rung} "
            f"({plan.summary}) {f'with {join(resume)}' if resume else 'from its beginning'}"
        )
