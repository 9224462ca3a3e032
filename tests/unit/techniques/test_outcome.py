"""What became of a plan, from the notes of the processes of a run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ullage.techniques.outcome import Outcome, State, note, read_outcome
from ullage.techniques.plan import MadeFor, Plan

MADE_FOR = MadeFor("2.15.0", "GPT", 1_000)
PLAN = Plan((), MADE_FOR)


def notes(directory: Path, *states: tuple[State, str]) -> Outcome:
    """The outcome of processes that have said so."""
    for number, (state, reason) in enumerate(states):
        text = json.dumps({"state": state, "reason": reason, "found": None})
        (directory / f"plan-{number}.json").write_text(text)
    return read_outcome(directory, PLAN)


def test_one_process_that_applied_it_is_enough(tmp_path: Path) -> None:
    outcome = notes(tmp_path, (State.WAITING, ""), (State.APPLIED, ""))
    assert outcome == Outcome(PLAN, is_applied=True)


def test_one_process_that_refused_it_is_enough(tmp_path: Path) -> None:
    outcome = notes(tmp_path, (State.APPLIED, ""), (State.REFUSED, "no module h.1"))
    assert (outcome.is_applied, outcome.is_refused, outcome.reason) == (
        False,
        True,
        "no module h.1",
    )


@pytest.mark.parametrize(
    "states,reason",
    [
        ((), "the program has not come to train a model"),
        (((State.WAITING, ""),), "no module with parameters of an optimizer was called"),
    ],
)
def test_a_plan_that_nobody_applied_was_not(
    tmp_path: Path, states: tuple[tuple[State, str], ...], reason: str
) -> None:
    outcome = notes(tmp_path, *states)
    assert not outcome.is_applied and not outcome.is_refused
    assert outcome.reason.startswith(reason)


def test_the_last_word_of_a_process_counts_and_a_description_comes_back(tmp_path: Path) -> None:
    note(tmp_path, State.WAITING)
    note(tmp_path, State.APPLIED, found=MADE_FOR)
    assert [path.name for path in tmp_path.iterdir()] == [f"plan-{os.getpid()}.json"]
    assert read_outcome(tmp_path, PLAN) == Outcome(PLAN, is_applied=True, found=MADE_FOR)


def test_a_process_that_outlives_its_run_is_not_disturbed(tmp_path: Path) -> None:
    note(tmp_path / "gone", State.APPLIED)
    assert list(tmp_path.iterdir()) == []
