"""A guarded training with an error at an allocation ends as it does without: by day at a share of
the allocations of some trainings (tests/rotation.py says which), by night at each of all.
"""

from __future__ import annotations

from pathlib import Path

from tests.phantom.error_at_allocations import (
    IN_EVERY_OTHER_STEP,
    SWEPT,
    Repeated,
    Training,
    check_all,
    check_repeated,
    check_share,
)
from tests.rotation import Table, by_day, by_night

DAY_STEPS = 12


@by_day(*SWEPT)
def test_errors_at_some_allocations_are_recovered_or_refused(
    thin_python: Path, table: Table[Training], place: int
) -> None:
    check_share(thin_python, *table.at(place))


@by_night(*SWEPT)
def test_an_error_at_every_allocation_is_recovered_or_refused(
    thin_python: Path, case: Training
) -> None:
    check_all(thin_python, case)


@by_day(IN_EVERY_OTHER_STEP)
def test_errors_in_every_other_step_leave_the_same_training(
    thin_python: Path, table: Table[Repeated], place: int
) -> None:
    repeated, _ = table.at(place)
    check_repeated(thin_python, repeated.name, DAY_STEPS, 2)


@by_night(IN_EVERY_OTHER_STEP)
def test_errors_in_many_steps_leave_the_same_training_and_do_not_grow(
    thin_python: Path, case: Repeated
) -> None:
    check_repeated(thin_python, case.name, case.num_steps, case.every)
