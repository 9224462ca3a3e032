"""Which way to share a training among ranks is searched, and which is chosen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ullage.explain.verdict import ExitCode
from ullage.gpus.catalog import find_gpu
from ullage.plan import spread
from ullage.plan.findings import Candidate, FitReport, Seen
from ullage.plan.menu import layouts
from ullage.techniques.technique import Action, Semantics

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
        as_it_is=Candidate("as it is", (), base_s, 1, 1), best=best, plan=None,
        candidates=() if best is None else (best,), front=((0.9 * base_s, 1),), bound_s=0.1,
        left_out={}, smallest=None, failure="", warnings=(), num_runs=0, wall_s=0.0,
        exit_code=ExitCode.FINE,
    )  # fmt: skip


def search(ways: dict[str, tuple[float, FitReport]], monkeypatch: Any, **named: Any) -> FitReport:
    """A search over ways: technique, seconds of a step, and what is found under it."""
    made = [spread._Way((Action(name),), None, step_s) for name, (step_s, _) in ways.items()]
    monkeypatch.setattr(spread.Spread, "_measure", lambda _: made)
    monkeypatch.setattr(spread.Spread, "_of", lambda _, __, name: SimpleNamespace(name=name))
    found = spread.Spread(lambda _: [], GPU, Semantics.SAME)
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
        [spread.RunRequest(), spread.RunRequest(has_work=True), spread.RunRequest()]
    )
    assert first[0] is first[2]
    assert remembering([spread.RunRequest(gpu=GPU), spread.RunRequest()])[1] is first[0]
    assert made == [2, 1]
