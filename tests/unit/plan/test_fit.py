"""What `ullage fit` asks its search for: another training only where nothing else fits."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from ullage.act.techniques.technique import Semantics
from ullage.facts.gpus.catalog import find_gpu
from ullage.search import fit, search
from ullage.search.objective import Goal, Objective
from ullage.search.runs.search import LimitReached

GPU = find_gpu("h100-80gb")


class Report(NamedTuple):
    """Stands for what a search found."""

    best: str | None
    failure: str = ""
    smallest: Any = None


def ask(
    monkeypatch: pytest.MonkeyPatch,
    found: dict[Semantics, Report],
    allowed: Semantics,
    *,
    is_for_memory: bool = False,
) -> tuple[Any, list[Semantics]]:
    """What is found, and what the searches were allowed."""
    asked: list[Semantics] = []

    def make(_run: Any, _gpu: Any, allowed: Semantics, **_: Any) -> Any:
        asked.append(allowed)
        return SimpleNamespace(fastest=lambda _: found[allowed], leanest=lambda _: found[allowed])

    monkeypatch.setattr(search, "Search", make)
    monkeypatch.setattr(fit, "replace", lambda report, **_: report)
    goal = Goal(GPU, GPU.total_bytes, Objective.MEMORY if is_for_memory else Objective.TIME)
    nothing: Any = None
    report = fit._fit_one(nothing, nothing, goal, allowed, fit.Smallest.NO, limit=fit.Limit(0.0))
    return report, asked


def test_another_training_is_not_looked_for_where_something_else_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {Semantics.ROUNDING: Report("bf16_states"), Semantics.TRAINING: Report("lora")}
    report, asked = ask(monkeypatch, found, Semantics.TRAINING)
    assert report.best == "bf16_states" and asked == [Semantics.ROUNDING]


def test_where_nothing_else_fits_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {Semantics.ROUNDING: Report(None), Semantics.TRAINING: Report("lora")}
    report, asked = ask(monkeypatch, found, Semantics.TRAINING)
    assert report.best == "lora" and asked == [Semantics.ROUNDING, Semantics.TRAINING]


def test_a_program_that_fails_is_not_searched_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    report, asked = ask(
        monkeypatch, {Semantics.ROUNDING: Report(None, "ValueError: x")}, Semantics.TRAINING
    )
    assert report.failure and asked == [Semantics.ROUNDING]


def test_the_least_memory_is_that_of_all_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {Semantics.TRAINING: Report("lora")}
    report, asked = ask(monkeypatch, found, Semantics.TRAINING, is_for_memory=True)
    assert report.best == "lora" and asked == [Semantics.TRAINING]


def test_what_is_not_allowed_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed in (Semantics.SAME, Semantics.ROUNDING):
        report, asked = ask(monkeypatch, {allowed: Report("checkpoint")}, allowed)
        assert report.best == "checkpoint" and asked == [allowed]


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (KeyboardInterrupt(), "it was interrupted"),
        (LimitReached("a run had not ended"), "the time limit was reached"),
    ],
)
def test_a_search_that_is_ended_early_gives_what_it_has_found(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, ended: str
) -> None:
    def interrupt(_: int) -> None:
        raise error

    def make(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(
            fastest=interrupt, so_far=lambda budget, ended: Report(f"of {budget}, {ended}")
        )

    job: Any = SimpleNamespace(options=SimpleNamespace(rank=None))
    nothing: Any = None
    monkeypatch.setattr(search, "Search", make)
    monkeypatch.setattr(fit, "fit_unchanged", lambda *_: None)
    goal = Goal(GPU, 7)
    limit = fit.Limit(0.0)
    found: Any = fit.find_plan(nothing, job, goal, Semantics.SAME, fit.Smallest.NO, limit=limit)
    assert found.best == f"of 7, {ended}"


def test_a_search_that_is_interrupted_before_its_first_run_is_just_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    job: Any = SimpleNamespace(options=SimpleNamespace(rank=None))
    nothing: Any = None
    monkeypatch.setattr(fit, "fit_unchanged", interrupt)
    goal, limit = Goal(GPU, 7), fit.Limit(0.0)
    with pytest.raises(KeyboardInterrupt):
        fit.find_plan(nothing, job, goal, Semantics.SAME, fit.Smallest.NO, limit=limit)


def test_a_time_limit_is_over_by_shares() -> None:
    assert fit.Limit(0.0).is_late(1.0)
    later = fit.Limit(time.monotonic() + 1000)
    assert later.is_late(0.0) and not later.is_late(0.5)
