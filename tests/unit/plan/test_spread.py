"""Which way to share a training among ranks is searched, and which is chosen."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ullage.act.techniques.technique import Action, Semantics
from ullage.explain.verdict import ExitCode
from ullage.facts.gpus.catalog import find_gpu
from ullage.search import spread
from ullage.search.budget import Limit
from ullage.search.findings import Candidate, FitReport, Seen, WorstRank
from ullage.search.menu import layouts
from ullage.search.objective import Goal, Objective

GPU = find_gpu("h100-80gb")
SEEN = Seen(fits=True, reason="", used_bytes=1, allocated_bytes=1, num_retries=0, host_bytes=0)


def report(base_s: float, best_s: float | None, used_bytes: int = 1) -> FitReport:
    """Of a search whose fastest plan at all takes a tenth less than the program as it is."""
    best = None
    if best_s is not None:
        best = Candidate(
            "checkpoint", (Action("checkpoint", ("h.0",)),), best_s, 1, used_bytes, SEEN
        )
    return FitReport(
        program=("train.py",), torch="2.15.0", gpu=GPU, budget_bytes=10, blocks=(),
        as_it_is=Candidate("unchanged", (), base_s, 1, 1), best=best, plan=None,
        candidates=() if best is None else (best,), front=((0.9 * base_s, 1),), bound_s=0.1,
        left_out={}, smallest=None, failure="", warnings=(), num_runs=0, wall_s=0.0,
        exit_code=ExitCode.FINE,
    )  # fmt: skip


def search(ways: dict[str, tuple[float, FitReport]], monkeypatch: Any, **named: Any) -> FitReport:
    """A search over ways: technique, seconds of a step, and what is found under it."""
    made = [spread._Way((Action(name),), None, step_s) for name, (step_s, _) in ways.items()]
    monkeypatch.setattr(spread.Spread, "_measure", lambda _: made)
    limit = Limit(named.pop("end_s", math.inf))
    monkeypatch.setattr(spread.Spread, "_of", lambda _, __, name: SimpleNamespace(name=name))
    found = spread.Spread(lambda _: [], GPU, Semantics.SAME, Objective.TIME, limit)
    return found.search(lambda one: ways[cast(Any, one).name][1], **named)


def test_the_shortest_step_is_chosen_and_what_is_longer_than_it_by_itself_is_not_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = {
        "shard": (1.0, report(1.0, 1.3)),
        "data_parallel": (1.1, report(1.1, 1.2)),
        "zero_optimizer": (2.0, report(2.0, 1.0)),  # 2.0 less a tenth is more than 1.2
    }
    found = search(ways, monkeypatch)
    assert found.best is not None and found.best.step_s == 1.2
    assert [one.technique for one in found.best.actions] == ["checkpoint", "data_parallel"]
    assert found.left_out == {"zero_optimizer": "its step is longer than that of the plan found"}
    assert {one.step_s for one in found.candidates} == {1.0, 1.2, 1.3}


def test_a_way_that_other_techniques_could_make_the_fastest_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = {"shard": (1.0, report(1.0, 1.05)), "data_parallel": (1.1, report(1.1, 1.02))}
    found = search(ways, monkeypatch)
    assert found.best is not None and found.best.step_s == 1.02


def test_after_the_time_limit_no_other_way_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {"shard": (1.0, report(1.0, 1.05)), "data_parallel": (1.1, report(1.1, 1.02))}
    found = search(ways, monkeypatch, end_s=0.0)
    assert found.best is not None and found.best.step_s == 1.05
    assert found.left_out == {"data_parallel": "the time limit was reached"} and found.ended


def test_where_memory_counts_all_ways_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {
        "shard": (1.0, report(1.0, 1.0, used_bytes=5)),
        "data_parallel": (9.0, report(9.0, 9.0, used_bytes=3)),
    }
    found = search(ways, monkeypatch, is_for_time=False)
    assert found.best is not None and found.best.used_bytes == 3


def test_where_nothing_fits_that_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = search({"shard": (1.0, report(1.0, None))}, monkeypatch)
    assert found.best is None
    assert found.as_it_is.name == "shard"


def test_every_way_gives_each_rank_a_batch_of_its_own() -> None:
    found = list(layouts(["h.0", "h.1"]))
    names = [[one.technique for one in actions] for actions in found]
    assert ["data_parallel"] in names and ["data_parallel", "zero_optimizer"] in names
    assert ["tensor_parallel"] not in names
    sharded = [actions[0] for actions in found if actions[0].technique == "shard"]
    assert all(one.modules == ("h.0", "h.1") for one in sharded)
    assert [dict(one.settings) for one in sharded] == [
        {},
        {"keeps_gathered": True},
        {"offload": True},
    ]


def test_each_run_is_made_once() -> None:
    made: list[int] = []

    def run(wanted: Any) -> list[Any]:
        made.append(len(wanted))
        return [object() for _ in wanted]

    remembering = spread._remembering(run)
    first = remembering(
        [spread.RunRequest(), spread.RunRequest(describes=True), spread.RunRequest()]
    )
    assert first[0] is first[2]
    assert remembering([spread.RunRequest(gpu=GPU), spread.RunRequest()])[1] is first[0]
    assert made == [2, 1]


def fit_over_ranks(
    monkeypatch: pytest.MonkeyPatch, needs: list[WorstRank]
) -> tuple[FitReport, list[int]]:
    """What is found for a budget of 10 bytes where the worst ranks of the plans need so much, and
    the budgets of the searches.
    """
    budgets: list[int] = []
    searched = SimpleNamespace(fastest=budgets.append)

    def spread_of(*_: Any) -> Any:
        return SimpleNamespace(search=look)

    def look(decide: Any, *, is_for_time: bool) -> FitReport:
        assert is_for_time
        decide(searched)
        return report(1.0, 1.2)

    monkeypatch.setattr(spread, "Spread", spread_of)
    monkeypatch.setattr(spread, "_worst_rank", lambda *_: needs[len(budgets) - 1])
    job: Any = SimpleNamespace(options=SimpleNamespace(rank=SimpleNamespace(world_size=4)))
    goal, limit = Goal(GPU, 10), Limit(math.inf)
    found = spread.fit_spread(lambda _: [], job, goal, Semantics.SAME, limit)
    return found, budgets


def test_a_plan_that_another_rank_does_not_fit_is_searched_again_with_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worst = WorstRank(3, 9, num_distinct=2, fits=True)
    found, budgets = fit_over_ranks(monkeypatch, [replace(worst, used_bytes=13), worst])
    assert budgets == [10, 10 - (13 - SEEN.used_bytes)]
    assert found.best is not None and found.worst_rank == worst
    assert (found.num_gpus, found.budget_bytes, found.exit_code) == (4, 10, ExitCode.FINE)


def test_where_a_rank_never_fits_that_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    found, budgets = fit_over_ranks(monkeypatch, [WorstRank(3, 12, num_distinct=2, fits=False)] * 3)
    assert budgets == [10, -1, -12]
    assert found.best is found.plan is None and found.exit_code is ExitCode.ANSWER_IS_NO
    assert found.left_out == {"checkpoint": "rank 3 needs 2 B too much"}
