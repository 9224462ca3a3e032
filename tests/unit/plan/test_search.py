"""Which plan a search tells, by a ladder and by runs that are given here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ullage.act.techniques.technique import Action, Semantics
from ullage.explain.verdict import ExitCode, Verdict
from ullage.facts.gpus.catalog import find_gpu
from ullage.search.findings import LATE, Candidate, Key, Seen
from ullage.search.menu import Actions
from ullage.search.proposals import Rung
from ullage.search.search import Search

# Fastest first, with the memory that the model expects of each.
EXPECTED = {"tiled_mlp": 80, "chunked_loss": 60, "checkpoint": 40, "optimizer_offload": 20}
CONTEXT_BYTES = 5
FIRST: Any = SimpleNamespace(
    program=SimpleNamespace(argv=("train.py",), plan=None), torch="2.15.0", verdict=Verdict.FITS,
    reason="", warnings=(), exit_code=ExitCode.FINE, time=None,
)  # fmt: skip


class Ladder:
    """A rung for each technique."""

    step_s = 1.0

    def __init__(self) -> None:
        self.rungs = [
            Rung(0.1 * (number + 1), size, size, number, 0)
            for number, size in enumerate(EXPECTED.values())
        ]

    def actions(self, rung: Rung) -> Actions:
        return (Action([*EXPECTED][rung.setting]),)

    def rivals(self, *_: Any) -> list[Rung]:
        return []

    def learn(self, _rung: Rung, _report: Any) -> None:
        """What a run showed changes nothing here."""

    def leave_out(self, key: Key) -> None:
        self.rungs = [rung for rung in self.rungs if self.actions(rung)[0].technique != key[0][0]]

    def bound_s(self, _rung: Rung) -> float:
        return self.step_s


class Replays:
    """Which techniques train otherwise, known once that was noted."""

    def __init__(self, different: Sequence[str]) -> None:
        self._different = different
        self._noted: set[str] = set()

    def of(self, actions: Actions) -> Any:
        return SimpleNamespace(is_same=actions[0].technique not in self._different)

    def note_different(self, actions: Actions) -> Actions:
        self._noted.add(actions[0].technique)
        return actions

    def difference(self, actions: Actions) -> str:
        is_noted = bool(actions) and actions[0].technique in self._noted
        return "its losses differ" if is_noted else ""

    def is_made(self, _actions: Actions) -> bool:
        return False


class Runs:
    """What runs of the techniques take, and which fit only in a process that ran others before."""

    def __init__(self, used: dict[str, int], warm: Sequence[str], replays: Replays) -> None:
        self.used, self.warm, self.replays = used, warm, replays
        self.ran: list[str] = []

    def see(self, plans: Sequence[Actions], budget_bytes: int) -> list[Seen]:
        self.ran += [plan[0].technique for plan in plans]
        found = [self.seen(plan, budget_bytes) for plan in plans]
        return [one for one in found if one is not None]

    def seen(self, actions: Actions, budget_bytes: int) -> Seen | None:
        if not actions or actions[0].technique not in self.ran:
            return None
        used = self.used[actions[0].technique]
        fits = used <= budget_bytes and not self.replays.difference(actions)
        return Seen(fits, "" if fits else "too much", used, used, num_retries=0, host_bytes=0)

    def confirm(self, actions: Actions, _budget_bytes: int) -> bool:
        return actions[0].technique not in self.warm

    def learnable(self, _actions: Actions) -> Any:
        return SimpleNamespace(verdict=Verdict.FITS)

    def time(self, _actions: Actions) -> None:
        """None is timed."""

    def shortest_s(self, _plans: Sequence[Actions]) -> float:
        return 0.0


def search(
    monkeypatch: pytest.MonkeyPatch,
    used: dict[str, int] | None = None,
    *,
    warm: Sequence[str] = (),
    different: Sequence[str] = (),
    is_late: Callable[[float], bool] = lambda _share: False,
) -> tuple[Search, Runs]:
    """A search that has measured all; runs take what the model expects, or what is given."""
    found = Search(lambda _: [], find_gpu("t4"), Semantics.SAME, is_late=is_late)
    expected = {name: size + CONTEXT_BYTES for name, size in EXPECTED.items()}
    replays = Replays(different)
    runs = Runs({**expected, **(used or {})}, warm, replays)
    base = SimpleNamespace(
        actions=(), time=None, seconds=SimpleNamespace(step=1.0),
        profile=SimpleNamespace(peak_bytes=100),
        device=SimpleNamespace(
            peak_used_bytes=100 + CONTEXT_BYTES, totals=SimpleNamespace(peak_reserved_bytes=100)
        ),
    )  # fmt: skip
    parts = {
        "_ladder": Ladder(), "_runs": runs, "_replays": replays, "_is_begun": True,
    }  # fmt: skip
    for name, part in parts.items():
        monkeypatch.setattr(found, name, part)
    found._measured.first = FIRST
    monkeypatch.setattr(found._measured, "base", base)
    monkeypatch.setattr(found._measured, "plan_to_run", lambda _: None)
    return found, runs


def name_of(candidate: Candidate | None) -> str:
    return "" if candidate is None else candidate.name


def test_the_fastest_that_fits_is_told_and_what_is_faster_is_seen_not_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, runs = search(monkeypatch)
    report = found.fastest(66)
    assert name_of(report.best) == "chunked_loss" and report.exit_code is ExitCode.FINE
    assert report.best is not None
    assert (report.best.step_s, report.best.used_bytes) == (pytest.approx(1.2), 65)
    assert sorted(runs.ran) == ["chunked_loss", "tiled_mlp"]
    whys = {one.name: one.why for one in report.candidates}
    assert whys == {"unchanged": "39 B too much", "tiled_mlp": "too much", "chunked_loss": ""}
    assert report.front == tuple(
        (pytest.approx(1.1 + 0.1 * number), size + CONTEXT_BYTES)
        for number, size in enumerate(EXPECTED.values())
    )


def test_what_takes_more_than_expected_gives_way_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _ = search(monkeypatch, {"chunked_loss": 70})
    assert name_of(found.fastest(66).best) == "checkpoint"


def test_what_does_not_fit_from_the_first_line_on_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _ = search(monkeypatch, {"chunked_loss": 60, "checkpoint": 45}, warm=["chunked_loss"])
    report = found.fastest(85)
    assert name_of(report.best) == "tiled_mlp"
    found, _ = search(monkeypatch, warm=["tiled_mlp", "chunked_loss"])
    assert found.fastest(66).best is None


def test_what_trains_otherwise_is_left_out_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _ = search(monkeypatch, different=["chunked_loss"])
    report = found.fastest(66)
    assert name_of(report.best) == "checkpoint"
    assert report.left_out == {"chunked_loss": "its losses differ"}


def test_nothing_that_fits_is_the_answer_no(monkeypatch: pytest.MonkeyPatch) -> None:
    found, runs = search(monkeypatch)
    report = found.fastest(10)
    assert report.best is None and report.exit_code is ExitCode.ANSWER_IS_NO
    assert "optimizer_offload" in runs.ran


def test_the_least_memory_is_that_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = search(monkeypatch, {"optimizer_offload": 50})
    assert name_of(found.leanest(100).best) == "checkpoint"


def test_after_the_time_limit_no_plan_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    found, runs = search(monkeypatch, is_late=lambda _share: True)
    report = found.fastest(66)
    assert not runs.ran and report.ended == LATE and report.exit_code is ExitCode.ANSWER_IS_NO
    assert name_of(found.fastest(200).best) == "unchanged"


def test_a_program_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = search(monkeypatch)
    monkeypatch.setattr(found, "_ladder", None)
    found._measured.first = SimpleNamespace(
        **vars(FIRST) | {"verdict": Verdict.FAILED, "reason": "no data"}
    )  # type: ignore[assignment]
    report = found.fastest(66)
    assert report.failure == "no data" and report.best is None
