"""The rules of a guard that adapts, on a ladder whose needs are known."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from tests.rows import each

from ullage.act.guard.adapting.adapt import Adapt, Rules, Situation, read_settings, square_sizes
from ullage.act.guard.adapting.forecast import Sizes
from ullage.ground.errors import SpecError

GIB = 1 << 30
# What a token of a batch takes on each rung, and all of them below it.
TOKEN_BYTES = (1_000_000, 800_000, 600_000, 300_000)
FLOOR_BYTES = GIB
BASE_BYTES = 2 * GIB


def sizes_of(length: int) -> Sizes:
    """Of 8 rows of tokens."""
    return float(8 * length), float(8 * length * length)


def need_of(length: int, rung: int) -> int:
    """The peak of a step above what was allocated before it."""
    return max(FLOOR_BYTES, 8 * length * TOKEN_BYTES[rung])


@dataclass(slots=True, frozen=True)
class Run:
    """What a stream of batches came to: the rung of each step, and the steps that failed."""

    rules: Rules
    rungs: list[int] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)


def run(
    lengths: Sequence[int],
    capacity_gib: float = 16,
    settings: Adapt | None = None,
    *,
    step_s: float = 1.0,
) -> Run:
    """Plays a stream; a step that does not fit fails, and is recovered on the next that does."""
    result = Run(Rules(settings or Adapt(), len(TOKEN_BYTES)))
    rung = 0
    for step, length in enumerate(lengths):
        situation = Situation(
            step, step * step_s, "program", sizes_of(length), rung, BASE_BYTES, BASE_BYTES,
            int(capacity_gib * GIB),
        )  # fmt: skip
        rung = result.rules.choose(situation).rung
        situation = replace(situation, rung=rung)
        while BASE_BYTES + need_of(length, rung) > situation.capacity_bytes:
            rung += 1
        if rung != situation.rung:
            result.failures.append(step)
            result.rules.learn_failure(situation, rung)
            situation = replace(situation, rung=rung)
        result.rules.learn(situation, BASE_BYTES + need_of(length, rung), is_first=step == 0)
        result.rungs.append(rung)
    return result


def long_tail(seed: int, num: int) -> list[int]:
    """Lengths of which few are long; all of them fit on the last rung within 16 GiB."""
    source = random.Random(seed)
    return [64 * max(2, min(64, round(source.lognormvariate(2.4, 0.7)))) for _ in range(num)]


def best(length: int, capacity_gib: float = 16) -> int:
    """The fastest rung that a batch really fits on."""
    fits = [
        rung
        for rung in range(len(TOKEN_BYTES))
        if BASE_BYTES + need_of(length, rung) <= capacity_gib * GIB
    ]
    return fits[0]


@each("seed", range(20))
def test_no_batch_of_a_long_tail_fails_after_the_first(seed: int) -> None:
    """Of the first nothing is known: it is run as the guard runs it without adapting."""
    lengths = long_tail(seed, 200)
    assert run(lengths).failures == [0] * (best(lengths[0]) > 0)


@pytest.mark.parametrize("seed", range(5))
def test_later_on_nearly_every_batch_has_the_best_rung(seed: int) -> None:
    lengths = long_tail(seed, 400)
    rungs = run(lengths).rungs
    later = [(rung, best(length)) for rung, length in zip(rungs, lengths, strict=True)][200:]
    assert all(rung >= ideal for rung, ideal in later)
    assert sum(rung == ideal for rung, ideal in later) > 0.9 * len(later)


def test_batches_of_one_length_change_nothing() -> None:
    result = run([1024] * 300)
    assert result.rungs == [0] * 300
    assert [*result.rules.log] == []


def test_batches_of_one_length_that_do_not_fit_change_nothing_after_the_error() -> None:
    result = run([2048] * 300)
    assert result.failures == [0]
    assert set(result.rungs) == {best(2048)}
    assert [*result.rules.log] == []


def test_every_change_is_in_the_log_with_its_reason() -> None:
    result = run(long_tail(1, 200))
    changes = [each for each in result.rules.log if each.kind != "trim"]
    rungs = [0, *result.rungs]
    moves = [
        (step, before, after)
        for step, (before, after) in enumerate(itertools.pairwise(rungs))
        if before != after
    ]
    assert [(each.step, each.before, each.after) for each in changes] == moves
    assert all(" GiB " in each.reason or "measure" in each.reason for each in changes)
    assert {each.kind for each in changes} == {"leaner", "faster", "learn"}


def test_a_reason_has_what_is_needed_and_what_is_there() -> None:
    (change,) = [each for each in run([512, 512, 2000]).rules.log if each.kind == "leaner"]
    assert str(change) == (
        "step 2: leaner: rung 0 -> 3: the batch needs up to 60.2 GiB of 16.0 GiB on rung 0, as it "
        "is in proportion to a smaller batch; no rung is forecast to fit, and this is the leanest"
    )


@pytest.mark.parametrize("limit", [0, 1, 20])
def test_the_changes_of_an_hour_are_bounded(limit: int) -> None:
    """After the limit the guard goes to leaner rungs only: at most so many more as there are."""
    result = run(long_tail(2, 1000), settings=Adapt(changes_per_hour=limit))
    changes = [each for each in result.rules.log if each.kind != "limit"]
    assert len(changes) <= limit + len(TOKEN_BYTES) - 1
    assert result.failures == [0]
    assert [each.kind for each in result.rules.log].count("limit") == 1


def test_an_hour_later_there_are_changes_again() -> None:
    result = run(long_tail(2, 400), settings=Adapt(changes_per_hour=20), step_s=60)
    changed_at = [60 * each.step for each in result.rules.log if each.kind != "limit"]
    assert len(changed_at) > 3 * 20
    for start in changed_at:
        assert len([at for at in changed_at if start <= at < start + 3600]) <= 23


def test_a_batch_at_the_limit_does_not_go_back_and_forth() -> None:
    """Within the hysteresis the rung stays: lengths alternate around what just fits on rung 0."""
    limit = (0.97 * 16 - 2) * GIB / 8 / TOKEN_BYTES[0]
    lengths = [256, 512, 1024, 1400, int(1.02 * limit), *[int(0.985 * limit)] * 50]
    assert len({*run(lengths).rungs[5:]}) == 1


def test_less_memory_is_met_before_a_step_fails() -> None:
    """Another process takes memory: the same batch needs a leaner rung."""
    rules = Rules(Adapt(), len(TOKEN_BYTES))
    plenty = Situation(0, 0.0, "p", sizes_of(1024), 0, BASE_BYTES, BASE_BYTES, 16 * GIB)
    rules.learn(plenty, BASE_BYTES + need_of(1024, 0), is_first=False)
    assert rules.choose(plenty).rung == 0
    assert rules.choose(replace(plenty, capacity_bytes=9 * GIB)).rung == 3


def test_more_of_the_memory_is_left_free_after_an_error_that_was_not_foreseen() -> None:
    rules = Rules(Adapt(), len(TOKEN_BYTES))
    situation = Situation(0, 0.0, "p", sizes_of(1024), 0, BASE_BYTES, BASE_BYTES, 16 * GIB)
    rules.learn(situation, BASE_BYTES + need_of(1024, 0), is_first=False)
    rules.learn_failure(situation, 1)
    assert rules.reserve == pytest.approx(0.05)


def test_a_cache_in_the_way_of_a_large_batch_is_given_back() -> None:
    def is_trimmed(length: int, cached_gib: float, settings: Adapt) -> bool:
        rules = Rules(settings, len(TOKEN_BYTES))
        allocated, reserved = BASE_BYTES, BASE_BYTES + int(cached_gib * GIB)
        before = Situation(0, 0.0, "p", sizes_of(512), 0, allocated, reserved, 16 * GIB)
        for measured in (512, 640, 768, 896, 1024):
            situation = replace(before, sizes=sizes_of(measured))
            rules.learn(situation, BASE_BYTES + need_of(measured, 0), is_first=False)
        choice = rules.choose(replace(before, sizes=sizes_of(length)))
        assert choice.rung == 0
        assert choice.is_trimmed == ("trim" in {each.kind for each in choice.changes})
        return choice.is_trimmed

    assert is_trimmed(1500, 5, Adapt())
    assert not is_trimmed(1500, 1, Adapt())  # it fits beside the cache
    assert not is_trimmed(1024, 7, Adapt())  # a step of this size had room
    assert not is_trimmed(1500, 5, Adapt(trims=False))
    assert not is_trimmed(1500, 5, Adapt(changes_per_hour=0))


def test_programs_have_forecasts_of_their_own() -> None:
    rules = Rules(Adapt(), len(TOKEN_BYTES))
    training = Situation(0, 0.0, "training", sizes_of(64), 0, BASE_BYTES, BASE_BYTES, 16 * GIB)
    rules.learn(training, BASE_BYTES + GIB, is_first=False)
    assert rules.needs(replace(training, program="other")).of(0) is None


def test_a_program_that_needs_more_than_it_did_is_learned_anew() -> None:
    rules = Rules(Adapt(), len(TOKEN_BYTES))
    situation = Situation(0, 0.0, "p", sizes_of(512), 0, BASE_BYTES, BASE_BYTES, 64 * GIB)
    for length in (256, 512, 768, 1024):
        before = replace(situation, sizes=sizes_of(length))
        rules.learn(before, BASE_BYTES + need_of(length, 0), is_first=False)
    rules.learn(situation, BASE_BYTES + 30 * GIB, is_first=False)
    need = rules.needs(replace(situation, sizes=sizes_of(1024))).of(0)
    assert need is not None and need.num_bytes >= 60 * GIB


def test_settings_are_checked() -> None:
    settings = [read_settings(adapt) for adapt in (False, True)]
    assert settings == [None, Adapt()]
    with pytest.raises(SpecError, match=r"adapt='yes'; expected True, False or ullage.Adapt"):
        read_settings("yes")
    with pytest.raises(SpecError, match=r"changes_per_hour=-1; expected 0 or more"):
        Adapt(changes_per_hour=-1)
    with pytest.raises(SpecError, match=r"reserve=0.5; expected a share from 0 to below 0.5"):
        Adapt(reserve=0.5)


def test_sizes_of_ones_own_come_with_their_squares() -> None:
    assert square_sizes(3) == (3.0, 9.0)
    assert square_sizes([2, 5]) == (2.0, 4.0, 5.0, 25.0)
    for wrong in ("long", None, [], [-1], float("nan")):
        with pytest.raises(SpecError, match=r"sizes= returned .*; expected"):
            square_sizes(wrong)
