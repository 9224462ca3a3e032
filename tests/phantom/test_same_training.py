"""A program trains the same under a plan, or the plan is refused: by day a share of the programs
and plans (tests/rotation.py says which), by night all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.phantom import same_training
from tests.phantom.same_training import (
    EVERY_DAY,
    NEEDY,
    OF_MODELS,
    TRAININGS,
    Drawn,
    Ranks,
    Scripts,
    Share,
    check_cases,
    check_drawn,
    check_ranks,
    check_scripts,
    judge,
    why_wrong,
)
from tests.rotation import Table, by_day, by_night

DRAWN = (same_training.OF_MIXED, same_training.OF_FAULTS, same_training.OF_DRAWN)


@by_day(TRAININGS, OF_MODELS)
def test_some_programs_train_the_same_under_a_plan_or_it_is_refused(
    thin_python: Path, table: Table[Share], place: int
) -> None:
    check_cases(thin_python, table.at(place)[0].cases)


@by_night(TRAININGS, OF_MODELS)
def test_every_program_trains_the_same_under_a_plan_or_it_is_refused(
    thin_python: Path, case: Share
) -> None:
    check_cases(thin_python, case.cases)


def test_what_rounds_or_adds_up_in_parts_trains_about_the_same(thin_python: Path) -> None:
    check_cases(thin_python, EVERY_DAY)


@pytest.fixture(scope="module")
def needy(thin_python: Path) -> list[dict[str, Any]]:
    """What came of techniques that need a package."""
    return judge(thin_python, NEEDY)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(NEEDY)), ids=map(str, NEEDY))
def test_a_technique_of_another_package_trains_as_it_says(
    needy: list[dict[str, Any]], number: int
) -> None:
    case, found = NEEDY[number], needy[number]
    if " needs " in found.get("refused", ""):
        pytest.skip(found["refused"])
    assert why_wrong(case, found) == ""


@by_day(*DRAWN)
def test_some_plans_that_are_drawn_train_the_same(
    thin_python: Path, table: Table[Drawn], place: int
) -> None:
    drawn, visit = table.at(place)
    first = visit * drawn.day % drawn.night
    check_drawn(thin_python, drawn, first, first + drawn.day)


@by_night(*DRAWN)
def test_plans_that_are_drawn_train_the_same(thin_python: Path, case: Drawn) -> None:
    check_drawn(thin_python, case, 0, case.night)


@by_day(same_training.OF_SCRIPTS, same_training.OF_TRAINERS)
def test_some_scripts_train_as_they_did_and_their_blocks_run_again(
    thin_python: Path, torch_version: str, tmp_path: Path, table: Table[Scripts], place: int
) -> None:
    check_scripts(thin_python, torch_version, tmp_path, table.at(place)[0])


@by_night(same_training.OF_SCRIPTS, same_training.OF_TRAINERS)
def test_every_script_trains_as_it_did_and_its_blocks_run_again(
    thin_python: Path, torch_version: str, tmp_path: Path, case: Scripts
) -> None:
    check_scripts(thin_python, torch_version, tmp_path, case)


@by_day(same_training.ON_RANKS)
def test_some_ranks_train_as_the_mean_of_their_gradients_would(
    thin_python: Path, torch_version: str, tmp_path: Path, table: Table[Ranks], place: int
) -> None:
    check_ranks(thin_python, torch_version, tmp_path, table.at(place)[0])


@by_night(same_training.ON_RANKS)
def test_all_ranks_train_as_the_mean_of_their_gradients_would(
    thin_python: Path, torch_version: str, tmp_path: Path, case: Ranks
) -> None:
    check_ranks(thin_python, torch_version, tmp_path, case)
