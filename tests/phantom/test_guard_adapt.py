"""`ullage.guard(adapt=True)` on the phantom: a long batch is met before it fails.

tests/unit/runtime has the rules and forecasts; benchmarks/guard/adapt.py has whole streams by the
clock.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.phantom.conftest import RunProgram

pytestmark = pytest.mark.phantom
SOURCE = str(Path(__file__).parents[2] / "src")
LONG = (4, 7)  # steps with a long batch


def adapt(run_program: RunProgram, *ways: str) -> dict[str, Any]:
    """What each way of guarding printed."""
    options = ("--memory", "3.2GiB", "--clock", "virtual")
    outcome = run_program("guard/adapts.py", SOURCE, *ways, options=options, timeout_s=600)
    assert outcome.exit_code == 0, outcome.stderr
    document: dict[str, Any] = outcome.printed
    return document


@pytest.fixture
def ways(run_program: RunProgram) -> dict[str, Any]:
    """With adapting and without."""
    return adapt(run_program, "off", "on")


@pytest.fixture
def others(run_program: RunProgram) -> dict[str, Any]:
    """Where sizes are given, and where nothing can be forecast."""
    return adapt(run_program, "sizes", "blind", "cpu")


def check_leaner(document: dict[str, Any]) -> None:
    """Long batches go to a leaner rung before they fail."""
    rungs = document["rungs"]
    assert document["recoveries"] == 0
    assert all(rungs[step] > 0 for step in LONG)
    # Once the rungs are known, short batches have the program as it is.
    assert rungs[-1] == 0


def test_long_batches_go_to_a_leaner_rung_before_they_fail(ways: dict[str, Any]) -> None:
    check_leaner(ways["on"])


def test_long_batches_whose_sizes_are_given_do_so_too(others: dict[str, Any]) -> None:
    check_leaner(others["sizes"])


def test_every_change_is_logged_with_its_reason(ways: dict[str, Any]) -> None:
    document = ways["on"]
    assert document["log"] == document["logged"]
    changes = [line for line in document["log"] if ": trim: " not in line]
    rungs = [0, *document["rungs"]]
    moves = [step for step in range(len(rungs) - 1) if rungs[step] != rungs[step + 1]]
    assert [int(line.split(":")[0].removeprefix("step ")) for line in changes] == moves
    assert any("leaner: rung 1 -> 2: the batch needs up to" in line for line in changes)
    num_changes = len(document["log"])
    assert (
        f"ullage: guard: adapt: {num_changes} changes in 9 steps, see guard.log"
        in (document["said"])
    )


def test_off_means_off(ways: dict[str, Any]) -> None:
    document = ways["off"]
    assert document["recoveries"] > 0
    assert (document["log"], document["logged"]) == ([], [])
    assert not any("adapt" in line for line in document["said"])


def test_tensors_and_generators_are_as_without_adapting(ways: dict[str, Any]) -> None:
    on, off = ways["on"], ways["off"]
    assert on["allocated"] == off["allocated"]
    assert on["generator"] == off["generator"]


def test_where_nothing_can_be_forecast_it_says_so_once_and_changes_nothing(
    others: dict[str, Any],
) -> None:
    reasons = {
        "blind": "the step's arguments have no tensor; pass Adapt(sizes=...)",
        "cpu": "the parameters are not on one GPU",
    }
    for way, reason in reasons.items():
        document = others[way]
        assert document["said"].count(f"ullage: guard: adapt: nothing is forecast: {reason}") == 1
        assert (document["log"], set(document["rungs"])) == ([], {0})
