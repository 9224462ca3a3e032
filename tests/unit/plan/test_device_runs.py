"""Which runs on the device of a search are made, and what is known of a plan after them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ullage.act.techniques.technique import Action
from ullage.clock.step_time import Interval
from ullage.explain.verdict import Verdict
from ullage.facts.gpus.catalog import find_gpu
from ullage.search.costs.measure import RunRequest
from ullage.search.menu import Actions
from ullage.search.search import DeviceRuns

GPU = find_gpu("t4")
SMALL, LARGE = (Action("checkpoint"),), (Action("autocast"),)
USED = {"checkpoint": 8, "autocast": 30}


class Runner:
    """Makes runs of plans, which are their actions here; with less than 20 bytes they fit."""

    def __init__(self) -> None:
        self.requests: list[RunRequest] = []

    def __call__(self, requests: Sequence[RunRequest]) -> list[Any]:
        self.requests += requests
        return [self.report(request) for request in requests]

    def report(self, request: RunRequest) -> Any:
        plan: Any = request.plan
        used = USED[plan[0].technique]
        fits = request.gpu is None or used < 20
        totals = SimpleNamespace(peak_allocated_bytes=used - 1, num_alloc_retries=0)
        return SimpleNamespace(
            verdict=Verdict.FITS if fits else Verdict.OUT_OF_MEMORY,
            reason="" if fits else "out of memory",
            devices=[SimpleNamespace(peak_used_bytes=used, totals=totals)],
            host=SimpleNamespace(pinned_peak_bytes=0),
            time=SimpleNamespace(extremes=None, step=Interval(1, used, 50), num_tokens=4),
        )


@pytest.fixture
def runner() -> Runner:
    return Runner()


def device_runs(runner: Any, *, difference: str = "") -> DeviceRuns:
    """Those of a search, whose replays show a difference."""
    known: Any = SimpleNamespace(plan_to_run=lambda actions: actions)
    replays: Any = SimpleNamespace(difference=lambda _: difference)
    return DeviceRuns(runner, GPU, known, replays)


def test_a_plan_runs_once_whatever_the_budget(runner: Runner) -> None:
    runs = device_runs(runner)
    small, large, again = runs.see([SMALL, LARGE, SMALL], 10)
    assert small.fits and small == again and small.used_bytes == 8
    assert not large.fits and large.reason == "out of memory"
    (tight,) = runs.see([SMALL], 7)
    assert not tight.fits and tight.reason == "1 B too much"
    assert [(one.plan, one.gpu) for one in runner.requests] == [(SMALL, GPU), (LARGE, GPU)]


def test_a_plan_is_confirmed_by_one_run_in_a_process_of_its_own(runner: Runner) -> None:
    runs = device_runs(runner)
    assert runs.confirm(SMALL, 10) and not runs.confirm(SMALL, 7)
    assert not runs.confirm(LARGE, 100)
    assert [(one.plan, one.is_fresh) for one in runner.requests] == [(SMALL, True), (LARGE, True)]


@pytest.mark.parametrize(("actions", "num_more"), [(SMALL, 0), (LARGE, 1)])
def test_what_ran_out_is_learned_of_where_memory_is_without_end(
    runner: Runner, actions: Actions, num_more: int
) -> None:
    runs = device_runs(runner)
    runs.see([actions], 10)
    assert runs.learnable(actions).verdict is Verdict.FITS
    assert [one.gpu for one in runner.requests[1:]] == [None] * num_more


def test_the_time_of_each_run_is_kept(runner: Runner) -> None:
    runs = device_runs(runner)
    assert runs.shortest_s([SMALL, LARGE]) == 0.0
    runs.see([SMALL, LARGE], 10)
    assert runs.shortest_s([SMALL, LARGE]) == 8


def test_a_plan_whose_replay_differs_does_not_fit(runner: Runner) -> None:
    runs = device_runs(runner, difference="its losses differ")
    assert runs.seen(SMALL, 10) is None
    runs.see([SMALL], 10)
    seen = runs.seen(SMALL, 10)
    assert seen is not None and not seen.fits and seen.reason == "replayed, its losses differ"
