"""The ladder of plans: what it has learned of one is expected of it, what is refused is not on it,
and its bound is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from benchmarks.plans.probed import foresee

from ullage.act.techniques.technique import Action
from ullage.search import ladder as module
from ullage.search.costs.blocks import Block
from ullage.search.costs.clocked import Seconds
from ullage.search.costs.measure import Measured
from ullage.search.costs.profile import Profile, Stretch
from ullage.search.findings import Key, key_of
from ullage.search.ladder import Ladder
from ullage.search.menu import Actions
from ullage.search.proposals import Rung
from ullage.search.solver.problem import Failure, Problem
from ullage.search.solver.solve import lower_bound_s

PATHS = ("h.0", "h.1", "h.2", "h.3")
NUM = len(PATHS)
HEAD = Stretch("after forward", NUM - 1)
REST, KEPT, MIB = 50, 100, 2**20
CHECKPOINT, OFFLOAD = Action("checkpoint", PATHS), Action("offload_activations", PATHS)
LOSS, ALLOCATOR = Action("chunked_loss"), Action("allocator", (), {"expandable_segments": True})


def measured(
    actions: Actions,
    kept_mib: int,
    rest_mib: int,
    block_s: float,
    other_s: float,
    *,
    slack: float = 0.1,
) -> Measured:
    """What a run showed of blocks that are all alike."""
    peak = NUM * kept_mib + rest_mib
    totals = SimpleNamespace(
        peak_reserved_bytes=round(peak * MIB * (1 + slack)), peak_allocated_bytes=peak * MIB
    )
    live_blocks = {HEAD: np.ones(NUM, dtype=np.bool_)}
    kept = np.full(NUM, kept_mib * MIB)
    profile = Profile(kept, {HEAD: rest_mib * MIB}, live_blocks, peak * MIB)
    seconds = Seconds(np.full(NUM, block_s), NUM * block_s + other_s)
    return Measured(actions, cast("Any", SimpleNamespace(totals=totals)), profile, seconds)


@pytest.fixture
def ladder() -> Ladder:
    """Of the loss alone."""
    return ladder_of([measured((LOSS,), KEPT, 20, 1.0, 1.1)])


def ladder_of(moves: list[Measured]) -> Ladder:
    """Blocks that keep 100 MiB as they are, 10 checkpointed, 1 offloaded, and a loss of 50 MiB that
    takes 20 in chunks.
    """
    base = measured((), KEPT, REST, 1.0, 1.0)
    known = SimpleNamespace(
        blocks=tuple(Block(path, "Block") for path in PATHS),
        treatments=[
            measured((CHECKPOINT,), 10, REST, 1.3, 1.0),
            measured((OFFLOAD,), 1, REST, 1.5, 1.0),
        ],
        moves=moves,
    )
    return Ladder(cast("Any", known), base)


def run(ladder: Ladder, rung: Rung, kept_mib: int, rest_mib: int, *, slack: float = 0.0) -> None:
    """Has a ladder learn what a run under a rung's plan took."""
    kept = np.full(NUM, kept_mib * MIB)
    seen = Profile(kept, {HEAD: rest_mib * MIB}, {HEAD: np.ones(NUM, np.bool_)}, 0)
    peak = NUM * kept_mib + rest_mib
    totals = SimpleNamespace(
        peak_reserved_bytes=round(peak * MIB * (1 + slack)),
        peak_allocated_bytes=peak * MIB,
        num_alloc_retries=0,
    )
    device, process = SimpleNamespace(totals=totals), SimpleNamespace(record=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "read_profile", lambda _record, _blocks: seen)
        ladder.learn(rung, cast("Any", SimpleNamespace(devices=[device], processes=[process])))


def find(ladder: Ladder, *actions: Action) -> Rung:
    """The rung of a plan."""
    return next(one for one in ladder.rungs if ladder.actions(one) == actions)


def kinds_of(actions: Actions) -> set[Key]:
    return {key_of([replace(one, modules=())]) for one in actions}


def test_the_ladder_falls_from_the_fastest_to_the_leanest(ladder: Ladder) -> None:
    times = [one.time_s for one in ladder.rungs]
    sizes = [one.reserved_bytes for one in ladder.rungs]
    assert times == sorted(times) and sizes == sorted(sizes, reverse=True)
    assert ladder.actions(ladder.rungs[0]) == ()
    leanest = ladder.rungs[-1]
    assert ladder.actions(leanest) == (OFFLOAD, LOSS)
    assert leanest.peak_bytes == (NUM * 1 + 20) * MIB
    assert leanest.reserved_bytes == pytest.approx(leanest.peak_bytes * 1.1, rel=1e-6)


def test_what_was_seen_of_a_rung_is_expected_of_its_setting(ladder: Ladder) -> None:
    before = {one.place: one for one in ladder.rungs}
    rung = find(ladder, LOSS)
    others = [one for one in before.values() if one.setting == rung.setting and one != rung]
    run(ladder, rung, KEPT, 20 + 7)
    after = {one.place: one for one in ladder.rungs}
    found = after[rung.place]
    assert found.peak_bytes == found.reserved_bytes == rung.peak_bytes + 7 * MIB
    assert others
    for one in others:
        assert after[one.place].peak_bytes == one.peak_bytes + 7 * MIB
    for place, one in after.items():
        if place in before and one.setting != rung.setting:
            assert one == before[place]


def test_of_what_was_seen_the_most_alike_counts(ladder: Ladder) -> None:
    run(ladder, find(ladder, LOSS), KEPT, 20, slack=0.02)
    run(ladder, find(ladder, OFFLOAD, LOSS), 1, 20, slack=0.3)
    for num_offloaded, slack in ((1, 0.02), (3, 0.3)):
        told = foresee(ladder, (replace(OFFLOAD, modules=PATHS[:num_offloaded]), LOSS))
        peak = ((NUM - num_offloaded) * KEPT + num_offloaded + 20) * MIB
        assert told.peak_bytes == peak
        assert told.reserved_bytes == pytest.approx(peak * (1 + slack), rel=1e-6)


def test_what_was_seen_is_expected_of_a_setting_that_takes_as_long_until_it_is_seen() -> None:
    ladder = ladder_of([measured((ALLOCATOR,), KEPT, REST, 1.0, 1.0, slack=0.05)])
    run(ladder, find(ladder, ALLOCATOR, OFFLOAD), 1, REST + 30, slack=0.2)
    told = foresee(ladder, (OFFLOAD,))
    assert told.peak_bytes == (NUM + REST + 30) * MIB
    assert told.reserved_bytes == pytest.approx(told.peak_bytes * 1.4, rel=1e-6)
    run(ladder, find(ladder, ALLOCATOR, OFFLOAD)._replace(setting=0), 1, REST, slack=0.0)
    told = foresee(ladder, (OFFLOAD,))
    assert told.peak_bytes == told.reserved_bytes == (NUM + REST) * MIB


def test_rivals_would_fit_with_the_lower_bound_slack_that_was_seen(ladder: Ladder) -> None:
    than, loss = find(ladder, OFFLOAD, LOSS), find(ladder, LOSS)
    run(ladder, than, 1, 20, slack=0.5)
    one = next(one for one in ladder.rivals(than, 1 << 40, {}) if one.setting == than.setting)
    room = int(one.peak_bytes * 1.3)
    assert one.reserved_bytes > room
    assert one.place not in {other.place for other in ladder.rivals(than, room, {})}
    run(ladder, loss, KEPT, 20, slack=0.25)
    found = ladder.rivals(than, room, {})
    assert one.place in {other.place for other in found}
    assert one.place not in {other.place for other in ladder.rivals(than, room, {one.place})}
    for other in found:
        assert other.time_s < than.time_s and other.peak_bytes <= room
    known = [other.reserved_bytes for other in found if other.setting == than.setting]
    assert known == sorted(known)


def test_what_is_refused_together_is_on_no_rung(ladder: Ladder) -> None:
    pair = kinds_of((OFFLOAD, LOSS))
    assert any(pair <= kinds_of(ladder.actions(one)) for one in ladder.rungs)
    ladder.leave_out(key_of([replace(OFFLOAD, modules=()), LOSS]))
    found = [kinds_of(ladder.actions(one)) for one in ladder.rungs]
    assert not any(pair <= one for one in found)
    for alone in pair:
        assert any(alone in one for one in found)


def test_where_nothing_goes_there_are_no_rungs(ladder: Ladder) -> None:
    ladder.leave_out(())
    assert ladder.rungs == []


def test_the_bound_is_that_of_all_mixtures(ladder: Ladder) -> None:
    kept, extra_s = (KEPT, 10, 1), (0.0, 0.3, 0.5)
    for limit in range(20, 470, 23):
        takes = [
            sum(extra_s[one] for one in choice) + loss_s
            for choice in product(range(3), repeat=NUM)
            for rest, loss_s in ((REST, 0.0), (20, 0.1))
            if sum(kept[one] for one in choice) + rest <= limit
        ]
        rung = Rung(99.0, int(limit * MIB * 1.1), 0, 0, 0)
        bound_s = ladder.bound_s(rung) - ladder.step_s
        if takes:
            assert bound_s <= min(takes) + 1e-9
            assert bound_s >= min(takes) - 0.5  # of one block more
        else:
            assert bound_s == rung.time_s


def test_an_unanswered_solver_leaves_the_bound_as_it_was(
    ladder: Ladder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung = Rung(99.0, int(60 * MIB * 1.1), 0, 0, 0)
    monkeypatch.setattr(module, "solve", lambda *_: Failure.NOT_FOUND)
    unanswered_s = ladder.bound_s(rung)
    assert unanswered_s < ladder.step_s + rung.time_s
    monkeypatch.setattr(module, "solve", lambda *_: Failure.INFEASIBLE)
    assert ladder.bound_s(rung) == ladder.step_s + rung.time_s


def test_nothing_is_proved_to_take_forever_that_can_be_done(
    make_random: Callable[..., Problem],
) -> None:
    for seed in range(10):
        problem = make_random(seed, 5, 3)
        choices = [np.array(one) for one in product(range(3), repeat=5)]
        peaks = [problem.peak_bytes(one) for one in choices]
        times = [problem.time_s(one) for one in choices]
        for limit in sorted(peaks)[:: len(peaks) // 6]:
            best = min(t for t, peak in zip(times, peaks, strict=True) if peak <= limit)
            assert lower_bound_s(problem, limit) <= best + 1e-12
        assert lower_bound_s(problem, 0) == float("inf")
