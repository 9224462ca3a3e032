"""What became of a plan, from the notes of the processes of a run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ullage.act.techniques.applying.outcome import Outcome, State, note, read_outcome
from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.replaying.outcome import Replayed, write_replayed
from ullage.act.techniques.technique import Action

MADE_FOR = MadeFor("2.15.0", "GPT", 1_000)
PLAN = Plan((Action("free_gradients"),), MADE_FOR)


def notes(directory: Path, *states: tuple[State, str]) -> Outcome:
    """The outcome of processes that have said so."""
    for number, (state, reason) in enumerate(states):
        text = json.dumps({"state": state, "reason": reason, "program": None, "rungs": []})
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
        (((State.WAITING, "no optimizer"),), "no optimizer"),
        (((State.WAITING, "no optimizer"), (State.WAITING, "")), "no module with parameters of"),
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
    note(tmp_path, State.APPLIED, made_for=MADE_FOR)
    assert [path.name for path in tmp_path.iterdir()] == [f"plan-{os.getpid()}.json"]
    assert read_outcome(tmp_path, PLAN) == Outcome(PLAN, is_applied=True, found=MADE_FOR)


def test_a_process_that_outlives_its_run_is_not_disturbed(tmp_path: Path) -> None:
    note(tmp_path / "gone", State.APPLIED)
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_was_only_described_and_trains_nothing_is_told_why(tmp_path: Path) -> None:
    note(tmp_path, State.WAITING)
    outcome = read_outcome(tmp_path, None)
    assert not outcome.is_applied
    assert outcome.failure == (
        "no plan can be made for it: no module with parameters of an optimizer was called with "
        "gradients"
    )


def test_a_plan_of_no_actions_needs_nobody_to_apply_it(tmp_path: Path) -> None:
    assert read_outcome(tmp_path, Plan((), MADE_FOR)).is_applied


def test_what_a_replay_found_comes_back_and_a_difference_counts_most(tmp_path: Path) -> None:
    write_replayed(tmp_path, Replayed(done=("checkpoint on 2 of 2 Block",), precision="float64"))
    assert read_outcome(tmp_path, PLAN).replayed == Replayed(
        done=("checkpoint on 2 of 2 Block",), precision="float64"
    )
    (tmp_path / "replayed-1.json").write_text(json.dumps({"done": [], "difference": "the loss"}))
    replayed = read_outcome(tmp_path, PLAN).replayed
    assert replayed is not None and not replayed.is_same


def test_the_rungs_that_a_program_chose_come_back(tmp_path: Path) -> None:
    note(tmp_path, State.APPLIED, made_for=MADE_FOR, rungs=[PLAN, PLAN])
    assert read_outcome(tmp_path, None).rungs == (PLAN, PLAN)
