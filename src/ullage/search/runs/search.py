"""The loop of every search: of plans for a budget, of sizes, of shardings, of servers.

    best = search(begin, propose, attempt, judge)

A state is a record of what is known; what is profiled before the loop is in the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ullage.ground.errors import EnvironmentProblem

State = TypeVar("State")
Trial = TypeVar("Trial")
Result = TypeVar("Result")


class LimitReached(EnvironmentProblem):
    """Runs had not ended at the time limit of their search."""


def search(
    state: State,
    propose: Callable[[State], Trial | None],
    attempt: Callable[[Trial], Result],
    judge: Callable[[State, Trial, Result], State],
) -> State:
    """The state after the last trial that ended within the time limit.

    Args:
        propose: what to try next, such as several runs at once; None: nothing is left to try.
        attempt: makes the trial.
        judge: what is known after it.

    Raises:
        LimitReached: none did.
    """
    first = state
    while (trial := propose(state)) is not None:
        try:
            result = attempt(trial)
        except LimitReached:
            if state is first:
                raise
            break
        state = judge(state, trial, result)
    return state
