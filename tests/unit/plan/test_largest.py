"""The search for the largest size tries few sizes, and no absurd ones, whatever a plan frees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ullage.act.techniques.technique import Action, Semantics
from ullage.explain.verdict import Verdict
from ullage.facts.gpus.catalog import find_gpu
from ullage.ground.units import GIB
from ullage.search.costs.measure import RunRequest
from ullage.search.proposals import Rung
from ullage.search.sizes import largest
from ullage.search.sizes.largest import Answer, LargestReport, LargestSearch

GPU = find_gpu("rtx-3050-6gb")
LEAN, NEAR = Action("optimizer_offload"), Action("chunked_loss")
FASTER = Action("checkpoint", ("h.0",))
Peak = Callable[[int], float]


class Machine:
    """Runs a program that takes so many GiB as it is and under each of three plans."""

    def __init__(self, **peaks: Peak) -> None:
        self.tried: list[tuple[str, int]] = []
        self._peaks = {"": peaks["plain"], "optimizer_offload": peaks["lean"]}
        self._peaks["checkpoint"] = peaks.get("faster", peaks["plain"])
        self._peaks["chunked_loss"] = lambda size: peaks["lean"](size) + 0.5

    def run(self, asked: Sequence[tuple[int, RunRequest]]) -> list[Any]:
        """Each run."""
        return [self._one(size, wanted) for size, wanted in asked]

    def _one(self, size: int, wanted: RunRequest) -> Any:
        name = "" if wanted.plan is None else wanted.plan.actions[0].technique
        self.tried.append((name, size))
        used = int(self._peaks[name](size) * GIB)
        fits = wanted.gpu is None or used <= GPU.total_bytes
        totals = SimpleNamespace(
            peak_allocated_bytes=used, peak_reserved_bytes=used, num_alloc_retries=0
        )
        return SimpleNamespace(
            verdict=Verdict.FITS if fits else Verdict.OUT_OF_MEMORY,
            reason="" if fits else "no room", torch="2.15.0", warnings=(), processes=[],
            devices=[SimpleNamespace(totals=totals, peak_used_bytes=used)],
            host=SimpleNamespace(pinned_peak_bytes=0),
        )  # fmt: skip


class Known:
    """Stands for the measurements at one size."""

    blocks, left_out = (), {}

    def __init__(self, run: Any) -> None:
        self._run = run

    def measure_program(self) -> Any:
        return self._run([RunRequest()])[0]

    def measure_techniques(self, *_: Any) -> None:
        pass

    def plan(self, actions: Sequence[Action]) -> Any:
        return SimpleNamespace(actions=tuple(actions), foreseen=None)


def find(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> LargestReport:
    """The largest sizes with a ladder of three plans."""
    plans = (FASTER, NEAR, LEAN)
    rungs = [
        Rung(0.1, 90 * GIB, 0, 0, 1), Rung(0.2, 10 * GIB, 0, 1, 1), Rung(0.3, GIB, 0, 2, 1),
    ]  # fmt: skip
    ladder = SimpleNamespace(
        rungs=rungs,
        actions=lambda one: (plans[one.setting],),
        learn=lambda *_: None,
    )
    monkeypatch.setattr(largest, "Measurements", Known)
    monkeypatch.setattr(largest, "Ladder", lambda *_: ladder)
    monkeypatch.setattr(largest, "name_plan", lambda actions, _: str([*actions]))
    monkeypatch.setattr(LargestSearch, "_timed", timed)
    search = LargestSearch(machine.run, GPU, GPU.total_bytes)
    return search.find(["train.py", "{batch}"], "batch", Semantics.SAME)


def timed(_: LargestSearch, answers: Sequence[Answer]) -> list[Answer]:
    """The more a plan does, the longer a sample takes."""
    unit_s = {(): 0.1, (FASTER.technique,): 0.2, (LEAN.technique,): 0.3}
    names = [tuple(action.technique for action in one.actions) for one in answers]
    return [
        replace(one, step_s=one.size * unit_s[name])
        for one, name in zip(answers, names, strict=True)
    ]


def exact(peak: Peak) -> int:
    """The largest that fits, by trying all."""
    return next(size for size in range(10**4) if int(peak(size + 1) * GIB) > GPU.total_bytes)


def plain(size: int) -> float:
    """As of a small transformer: the optimizer's states, and all that layers keep."""
    return 3.0 + 0.6 * size


def far(size: int) -> float:
    """Nothing of the states; the peak is in the optimizer's step first, and then in a block."""
    return max(1.8, 1.3 + 0.043 * size)


def test_a_plan_that_takes_away_more_than_activations_leads_to_no_absurd_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It needs less in all than the program as it is needs at any size."""
    machine = Machine(plain=plain, lean=far)
    found = find(machine, monkeypatch)
    assert found.as_it_is is not None and found.as_it_is.size == exact(plain)
    assert found.best is not None and found.best.size == exact(far)
    assert found.best.beyond == found.best.size + 1
    assert max(size for _, size in machine.tried) <= 2 * exact(far)
    assert len([name for name, _ in machine.tried if name == "optimizer_offload"]) <= 10


def test_where_plans_get_far_techniques_are_measured_again_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is lean at the size that fits as it is need not be where the leanest ends."""
    measured: list[int] = []
    whole = LargestSearch._at

    def noted(self: LargestSearch, size: int) -> Any:
        measured.append(size)
        return whole(self, size)

    monkeypatch.setattr(LargestSearch, "_at", noted)
    find(Machine(plain=plain, lean=far), monkeypatch)
    assert measured[0] == 2 * exact(plain)
    assert len(measured) == 2 and exact(far) / 4 <= measured[1] <= exact(far)


def test_each_plan_ends_where_it_fits_and_the_next_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def faster(size: int) -> float:
        return 3.0 + 0.2 * size

    machine = Machine(plain=plain, lean=far, faster=faster)
    found = find(machine, monkeypatch)
    assert [(one.actions, one.size) for one in found.answers] == [
        ((LEAN,), exact(far)),
        ((FASTER,), exact(faster)),
        ((), exact(plain)),
    ]
    # It ends before the leanest, by two runs.
    assert [name for name, _ in machine.tried].count("chunked_loss") == 2
    assert all(one.beyond == one.size + 1 and one.why_not == "no room" for one in found.answers)
