"""What a search looks for, and which plan that is."""

from __future__ import annotations

import pytest

from ullage.act.techniques.technique import Action
from ullage.clock.step_time import Interval
from ullage.ground.errors import SpecError
from ullage.search.costs.clocked import Timed
from ullage.search.findings import Candidate, Seen
from ullage.search.objective import Objective, read_objective
from ullage.search.outcomes import fastest_fitting

GIB = 1 << 30


def candidate(name: str, step_s: float, num_tokens: int) -> Candidate:
    seen = Seen(fits=True, reason="", used_bytes=GIB, allocated_bytes=GIB, num_retries=0,
                host_bytes=0)  # fmt: skip
    time = Timed(Interval(step_s, step_s, step_s), num_tokens)
    return Candidate(name, (Action(name),), step_s, GIB, GIB, seen, time=time)


def test_the_cheapest_is_the_fastest_for_each_token() -> None:
    short, whole = candidate("short", 1.0, 1000), candidate("whole", 1.5, 2000)
    assert fastest_fitting([short, whole]) is short
    assert fastest_fitting([short, whole], Objective.COST) is whole


def test_of_equally_many_tokens_the_cheapest_is_the_fastest() -> None:
    plans = [candidate("a", 2.0, 1000), candidate("b", 1.0, 1000)]
    assert fastest_fitting(plans, Objective.COST) is fastest_fitting(plans)


def test_an_objective_is_one_of_three_and_the_cost_needs_a_price() -> None:
    assert read_objective("time", None) is Objective.TIME
    assert read_objective("memory", 2.0) is Objective.MEMORY
    assert read_objective("cost", 2.0) is Objective.COST
    with pytest.raises(SpecError, match="give price, in"):
        read_objective("cost", None)
    with pytest.raises(SpecError, match="time, cost, memory"):
        read_objective("speed", None)
