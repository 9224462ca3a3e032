"""The loop of every search: of plans for a budget, of sizes, of shardings, of servers.

    best = search(begin, propose, attempt, judge)

A state is a record of what is known; what is profiled before the loop is in the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

State = TypeVar("State")
Trial = TypeVar("Trial")
Result = TypeVar("Result")


def search(
    state: State,
    propose: Callable[[State], Trial | None],
    attempt: Callable[[Trial], Result],
    judge: Callable[[State, Trial, Result], State],
) -> State:
    """The state after the last trial.

    Args:
        propose: what to try next, such as several runs at once; None: nothing is left to try.
        attempt: makes the trial.
        judge: what is known after it.
    """
    while (trial := propose(state)) is not None:
        state = judge(state, trial, attempt(trial))
    return state
