"""The search among a launcher's configurations: what it tries, in which order, what it names."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ullage.act.techniques.applying.outcome import Outcome
from ullage.act.techniques.made_for import MadeFor
from ullage.clock.step_time import Interval
from ullage.explain.verdict import Verdict
from ullage.facts.gpus.catalog import find_gpu
from ullage.ground.errors import SpecError
from ullage.ground.units import GIB
from ullage.search.costs.blocks import Block
from ullage.search.costs.measure import RunRequest
from ullage.search.launchers import sharded_search
from ullage.search.launchers.sharded_search import ShardedSearch
from ullage.search.launchers.shardings import Engine, OnHost, Sharding

DDP, FSDP2 = Sharding(Engine.DDP, 0), Sharding(Engine.FSDP2, 3)
ZERO3 = Sharding(Engine.DEEPSPEED, 3)
ON_HOST = Sharding(Engine.DEEPSPEED, 3, OnHost.ALL)
FOUND = MadeFor("2.15.0", "Model", 8, {"": "Model", "a": "Block", "b": "Block"}, "AdamW")
OUTCOME = Outcome(None, is_applied=False, found=FOUND)


class Ranks:
    """Runs that take so many GiB and seconds, by the sharding's name."""

    def __init__(self) -> None:
        self.wanted: list[RunRequest] = []
        self.failing: dict[str, str] = {}
        self.last_takes_more: set[str] = set()
        self.retries: set[str] = set()
        self.takes = {
            "unchanged": (10, 1.0), "DDP": (10, 1.0), "FSDP2": (6, 1.5), "ZeRO 3": (5, 2.0),
            "ZeRO 3, parameters and optimizer on the host": (3, 0.5),
            "DDP, checkpointing": (7, 1.3), "FSDP2, checkpointing": (4, 1.9),
            "ZeRO 3, checkpointing": (3, 2.4),
            "ZeRO 3, parameters and optimizer on the host, checkpointing": (2, 0.9),
        }  # fmt: skip

    def run(self, wanted: Sequence[RunRequest]) -> list[Any]:
        """A report of each."""
        self.wanted += wanted
        return [self.report(one) for one in wanted]

    def report(self, one: RunRequest) -> Any:
        """Of one rank."""
        name = "unchanged" if one.sharding is None else one.sharding.name
        if name in self.failing:
            return self.failing[name]
        gib, seconds = self.takes[name]
        used = gib * GIB + (GIB if one.is_last and name in self.last_takes_more else 0)
        retries = int(one.gpu is not None and name in self.retries)
        totals = SimpleNamespace(peak_allocated_bytes=used - 2 * GIB, num_alloc_retries=retries)
        step = Interval(seconds, seconds, seconds)
        return SimpleNamespace(
            verdict=Verdict.FITS, reason="", torch="2.15.0", warnings=(), exit_code=0,
            time=SimpleNamespace(extremes=None, step=step, num_tokens=0, corrections=()),
            processes=[SimpleNamespace(record=None)],
            devices=[SimpleNamespace(peak_used_bytes=used, totals=totals)],
            host=SimpleNamespace(pinned_peak_bytes=0),
            program=SimpleNamespace(argv=("train.py",), plan=OUTCOME),
        )  # fmt: skip

    def names(self, *, on_device: bool) -> list[str]:
        """What was run, on the device or where memory is without end."""
        return [
            "unchanged" if one.sharding is None else one.sharding.name
            for one in self.wanted
            if (one.gpu is not None) is on_device
        ]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    """Runs of a program of two blocks."""
    blocks = (Block("a", "Block"), Block("b", "Block"))
    monkeypatch.setattr(sharded_search, "find_blocks", lambda *_: blocks)
    monkeypatch.setattr(sharded_search, "kept_by_module", lambda *_: None)
    return Ranks()


def write(sharding: Sharding, kinds: Sequence[str]) -> str:
    """A launcher's file that can say checkpointing for FSDP2 alone."""
    if sharding.is_checkpointed and sharding.engine is not Engine.FSDP2:
        raise SpecError("cannot be said")
    return f"{sharding.name} of {','.join(kinds)}"


def search(ranks: Ranks, *shardings: Sharding) -> ShardedSearch:
    """A search among these."""
    return ShardedSearch(cast(Any, ranks.run), write, find_gpu("rtx-4090"), shardings)


def test_the_fastest_that_fits_is_named_and_its_file_written(ranks: Ranks) -> None:
    report = search(ranks, DDP, FSDP2, ZERO3).find(6 * GIB)
    assert report.best is not None and report.best.name == "FSDP2"
    assert report.best.configuration == "FSDP2 of Block" and report.plan is None
    assert ranks.names(on_device=True) == ["FSDP2", "FSDP2"]
    assert [one.is_last for one in ranks.wanted if one.gpu] == [False, True]
    assert [one.step_s for one in report.candidates] == sorted(
        one.step_s for one in report.candidates
    )
    # What fits without checkpointing is not slowed down by it.
    assert "FSDP2, checkpointing" not in ranks.names(on_device=False)
    assert "DDP, checkpointing" in ranks.names(on_device=False)


def test_a_plan_does_what_the_file_cannot_say(ranks: Ranks) -> None:
    report = search(ranks, DDP, ZERO3).find(4 * GIB)
    assert report.best is not None and report.best.name == "ZeRO 3, checkpointing"
    assert report.best.configuration == "ZeRO 3 of Block"
    assert report.plan is not None and report.plan.foreseen is not None
    assert report.plan.actions[0].modules == ("a", "b")
    assert report.plan.made_for.modules == {"a": "Block", "b": "Block"}


def test_the_last_rank_has_to_fit_too(ranks: Ranks) -> None:
    ranks.last_takes_more = {"FSDP2"}
    report = search(ranks, FSDP2, ZERO3).find(6 * GIB)
    assert report.best is not None and report.best.name == "ZeRO 3"
    (lost,) = [one for one in report.candidates if one.name == "FSDP2"]
    assert lost.why == "1.0 GiB too much" and lost.used_bytes == 7 * GIB


def test_one_that_fits_without_retries_is_preferred(ranks: Ranks) -> None:
    ranks.retries = {"FSDP2"}
    report = search(ranks, FSDP2, ZERO3).find(6 * GIB)
    assert report.best is not None and report.best.name == "ZeRO 3"
    alone = search(ranks, FSDP2).find(6 * GIB)
    assert alone.best is not None and alone.best.name == "FSDP2"


def test_what_lies_on_the_host_is_tried_last(ranks: Ranks) -> None:
    report = search(ranks, ON_HOST, ZERO3).find(6 * GIB)
    assert report.best is not None and report.best.name == "ZeRO 3"
    report = search(ranks, ON_HOST, ZERO3).find(int(2.5 * GIB))
    assert report.best is not None and report.best.name == f"{ON_HOST.name}, checkpointing"


def test_the_least_memory_is_looked_for_among_all(ranks: Ranks) -> None:
    report = search(ranks, FSDP2, ZERO3).find(20 * GIB, is_for_memory=True)
    assert report.best is not None and report.best.name == "ZeRO 3, checkpointing"


def test_nothing_fits_and_what_cannot_be_started_is_left_out(ranks: Ranks) -> None:
    ranks.failing = {"ZeRO 3": "DeepSpeed is not installed"}
    report = search(ranks, DDP, ZERO3).find(2 * GIB)
    assert report.best is None and report.exit_code == 1
    assert report.left_out == {"ZeRO 3": "DeepSpeed is not installed"}
    assert {one.why for one in report.candidates} == {"8.0 GiB too much", "5.0 GiB too much"}


def test_a_program_that_fits_is_left_as_it_is(ranks: Ranks) -> None:
    report = search(ranks, DDP, FSDP2).find(20 * GIB)
    assert report.best is not None and report.best.is_as_it_is and not report.best.configuration
