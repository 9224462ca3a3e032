"""The order in which a step that fails is tried: leaner plans, once more, then in parts."""

from __future__ import annotations

from ullage.act.guard.ladder import Ladder
from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action

PLANS = [
    Plan((Action("checkpoint", modules),), MadeFor("2.15.0", "Model", 1))
    for modules in (("b.0",), ("b.0", "b.1"))
]


def ladder_of(num_splits: int) -> Ladder:
    """Two plans, and rungs that split the batch."""
    ladder = Ladder(PLANS, None, None)
    ladder.num_splits = num_splits
    return ladder


def tries(ladder: Ladder, first: int, *, may_split: bool = True) -> list[int]:
    """The rungs on which a step is tried that fails on all."""
    rungs = [first]
    is_first = True
    while (rung := ladder.next_try(rungs[-1], is_first=is_first, may_split=may_split)) is not None:
        rungs.append(rung)
        is_first = False
    return rungs


def test_leaner_plans_come_first_and_then_more_parts() -> None:
    assert tries(ladder_of(0), 0) == [0, 1, 2]
    assert tries(ladder_of(3), 0) == [0, 1, 2, 3, 4, 5]


def test_a_step_that_began_on_the_last_plan_is_tried_once_more_before_it_is_split() -> None:
    assert tries(ladder_of(0), 2) == [2, 2]
    assert tries(ladder_of(3), 2) == [2, 2, 3, 4, 5]
    assert tries(Ladder([], None, None), 0) == [0, 0]


def test_a_step_that_began_in_parts_is_tried_in_more() -> None:
    assert tries(ladder_of(3), 3) == [3, 4, 5]
    assert tries(ladder_of(3), 5) == [5, 5]


def test_a_batch_is_not_split_where_sums_were_done() -> None:
    assert tries(ladder_of(3), 0, may_split=False) == [0, 1, 2]
    assert tries(ladder_of(3), 4, may_split=False) == [4, 4]


def test_rungs_in_parts_are_named_and_climbed_one_by_one() -> None:
    ladder = ladder_of(3)
    assert ladder.name(4) == "rung 4 (checkpoint (2 modules), the batch in 4 parts)"
    assert [ladder.above(rung) for rung in (5, 4, 3, 2, 1)] == [4, 3, 2, 1, 0]
    assert ladder.tried(1, 4) == [1, 2, 3, 4]
    ladder.rung = 5
    assert ladder.num_parts == 8
