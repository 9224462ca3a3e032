"""Why a plan is not the one chosen."""

from __future__ import annotations

from dataclasses import replace

from ullage.act.techniques.technique import Action
from ullage.clock.step_time import Interval
from ullage.search.costs.clocked import Timed
from ullage.search.findings import Candidate, Seen
from ullage.search.objective import Objective
from ullage.search.outcomes import best_first, is_surely_slower, with_reason
from ullage.search.proposals import Rung

GIB = 1 << 30


def candidate(technique: str, step_s: float, used_gib: int, num_retries: int = 0) -> Candidate:
    seen = Seen(True, "", used_gib * GIB, used_gib * GIB, num_retries, 0)  # noqa: FBT003
    return Candidate(technique, (Action(technique),), step_s, 0, used_gib * GIB, seen)


BEST = candidate("chunked_loss", 2.0, 5)


def test_a_faster_plan_that_lives_by_retries_is_not_said_to_take_too_much() -> None:
    for used_gib in (4, 6):
        rival = candidate("free_gradients", 1.0, used_gib, num_retries=3)
        assert "gives back its cache" in with_reason(rival, BEST, 8 * GIB).why


def test_a_plan_that_is_faster_and_takes_more_says_so() -> None:
    rival = candidate("free_gradients", 1.0, 6)
    assert with_reason(rival, BEST, 8 * GIB).why == "takes more memory"
    assert with_reason(rival, BEST, 5 * GIB).why == "1.0 GiB too much"


def test_a_slower_plan_is_slower_and_the_chosen_one_has_no_reason() -> None:
    assert with_reason(candidate("free_gradients", 3.0, 4), BEST, 8 * GIB).why == "50.0 % slower"
    assert with_reason(BEST, BEST, 8 * GIB).why == ""


def timed(plan: Candidate, *ends: float) -> Candidate:
    """A plan with the clock's interval."""
    return replace(plan, step_s=ends[1], time=Timed(Interval(*ends), 0))


def test_a_plan_that_only_seems_slower_is_about_as_fast() -> None:
    best = timed(BEST, 0.8, 1.0, 1.4)
    unsure = timed(candidate("free_gradients", 0, 4), 0.7, 1.1, 1.5)
    sure = timed(candidate("free_gradients", 0, 4), 0.88, 1.1, 1.5)
    assert with_reason(unsure, best, 8 * GIB).why == "about as fast"
    assert with_reason(sure, best, 8 * GIB).why == "10.0 % slower"


def test_a_time_of_the_model_is_compared_by_the_likely_one() -> None:
    best = timed(BEST, 0.8, 1.0, 1.4)
    assert with_reason(candidate("free_gradients", 1.2, 4), best, 8 * GIB).why == "20.0 % slower"


def test_of_plans_that_are_about_as_fast_the_one_that_the_model_prefers_is_first() -> None:
    """The clock's fastest is not surely faster than the model's; the third is surely slower."""
    plans = {
        Rung(0.3, 1, 1, 0, 2): timed(BEST, 0.80, 1.00, 1.40),
        Rung(0.1, 1, 1, 0, 0): timed(BEST, 0.81, 1.01, 1.41),
        Rung(0.0, 1, 1, 0, 3): timed(BEST, 0.90, 1.20, 1.60),
    }
    first, second, third = best_first(plans, Objective.TIME)
    assert (first.choice, second.choice, third.choice) == (0, 2, 3)
    assert best_first({}, Objective.TIME) == []


def test_without_the_clock_the_order_is_that_of_the_model() -> None:
    plans = {Rung(t, 1, 1, 0, n): candidate("x", t, 1) for n, t in enumerate((3.0, 1.0, 2.0))}
    assert [rung.choice for rung in best_first(plans, Objective.TIME)] == [1, 2, 0]
    assert is_surely_slower(candidate("x", 1.01, 1), candidate("x", 1.0, 1), Objective.TIME)
