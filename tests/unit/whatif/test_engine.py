"""What cannot be replayed is refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ullage.explain.whatif import replays
from ullage.explain.whatif.engine import what_if
from ullage.explain.whatif.replays import Decider
from ullage.explain.whatif.settings import EXPANDABLE, Family, Setting
from ullage.facts.families.find import find_config
from ullage.ground.errors import EnvironmentProblem, SnapshotError, SpecError
from ullage.log.snapshot import Snapshot
from ullage.players.eager.training.estimate import estimate_training
from ullage.players.eager.training.log import write_log
from ullage.players.eager.training.recipe import Recipe
from ullage.players.phantom.device import choose_device


def test_a_snapshot_without_an_allocation_is_refused(
    make_snapshot: Callable[..., Snapshot],
) -> None:
    with pytest.raises(SnapshotError, match="holds no allocation"):
        what_if(make_snapshot(""), python=None, device=choose_device())


def test_another_allocators_recording_is_refused(make_snapshot: Callable[..., Snapshot]) -> None:
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    with pytest.raises(SpecError, match="backend:cudaMallocAsync"):
        what_if(
            replace(make_snapshot("+a"), settings=settings), python=None, device=choose_device()
        )


def test_torch_is_looked_for_only_where_the_rules_do_not_know_a_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_none(python: str) -> None:
        raise EnvironmentProblem(f"no torch in {python!r}")

    monkeypatch.setattr(replays, "find_torch", find_none)
    recipe = Recipe(batch=1, length=128)
    found = estimate_training(find_config("gpt2").config, recipe, None)
    log, device = write_log(found), choose_device()
    report = what_if(log, python=None, device=device, settings=[EXPANDABLE])
    assert report.torch == found.torch and report.check.is_exact
    outcomes = [trial.outcome for trial in report.tried]
    assert all(outcome and outcome.decider is Decider.RULES for outcome in outcomes)
    unknown = Setting(Family.MAX_SPLIT, "no_such_setting:1")
    with pytest.raises(EnvironmentProblem, match="no torch in"):
        what_if(log, python=None, device=device, settings=[unknown])
    # Of an interpreter that was named, and of a program that nobody recorded, it is asked at once.
    for snapshot, python in ((log, "python3"), (replace(log, record=None), None)):
        with pytest.raises(EnvironmentProblem, match="no torch in"):
            what_if(snapshot, python=python, device=device, settings=[EXPANDABLE])
