"""A run beside its lock and budget: what passes, what does not, what is said to have changed."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.explain.basis import BasisKind
from ullage.ground.units import GIB, MIB
from ullage.verbs.check.gate.budget import SEGMENT_BYTES, Amount, Budget, allowed_growth
from ullage.verbs.check.gate.compare import Comparison, Rule, compare, find_changes
from ullage.verbs.check.gate.lock import Entry, Key, Peaks
from ullage.verbs.check.gate.reasons import find_reasons

KEY = Key(torch="2.15.0+cu132", cuda="13.2", gpu="l4", ullage="0.1.0")
LOCKED = Entry(
    KEY, Peaks(4 * GIB, 4 * GIB, 5 * GIB, 6 * GIB), BasisKind.EXACT, growth_bytes=0,
    categories={"parameter": 3 * GIB, "activation": GIB},
    modules={"head": 3 * GIB, "blocks.*": GIB},
    places={"model.py in forward": 4 * GIB},
)  # fmt: skip
TOTAL = 8 * GIB


def taking(allocated: int = 0, reserved: int = 0, used: int = 0, **changes: object) -> Entry:
    """An entry that takes so much more than the locked one."""
    peaks = LOCKED.peaks
    more = Peaks(
        peaks.requested_bytes,
        peaks.allocated_bytes + allocated,
        peaks.reserved_bytes + reserved,
        peaks.used_bytes + used,
    )
    return replace(LOCKED, peaks=more, **changes)  # type: ignore[arg-type]


def check(
    entry: Entry,
    budget: Budget = Budget(),  # noqa: B008 - frozen
    tolerance: Amount | None = None,
    locked: Entry | None = LOCKED,
) -> Comparison:
    return compare("train", entry, locked, budget=budget, tolerance=tolerance, total_bytes=TOTAL)


@given(st.integers(min_value=100 * MIB, max_value=1024 * GIB))
def test_one_percent_or_32_mib_is_always_found(peak: int) -> None:
    locked = replace(LOCKED, peaks=Peaks(peak, peak, peak, peak))
    more = peak + min(peak // 100, 32 * MIB)
    entry = replace(LOCKED, peaks=Peaks(peak, more, peak, peak))
    assert not check(entry, locked=locked).is_kept
    assert check(locked, locked=locked).is_kept


def test_the_default_tolerance() -> None:
    allowed = allowed_growth(None, Peaks(0, GIB, 2 * GIB, 3 * GIB))
    assert allowed.allocated_bytes == GIB // 200
    assert allowed.reserved_bytes == allowed.used_bytes == SEGMENT_BYTES
    large = allowed_growth(None, Peaks(0, 100 * GIB, 100 * GIB, 100 * GIB))
    assert large.allocated_bytes == 16 * MIB


def test_a_tolerance_that_is_given_holds_for_every_level() -> None:
    exact = Amount.parse("0B")
    assert check(LOCKED, tolerance=exact).is_kept
    for entry in (taking(allocated=512), taking(reserved=512), taking(used=512)):
        (broken,) = check(entry, tolerance=exact).broken
        assert broken.rule is Rule.LOCK
    assert check(
        taking(allocated=40 * MIB, reserved=50 * MIB), tolerance=Amount.parse("1%")
    ).is_kept


@pytest.mark.parametrize(
    ("entry", "names"),
    [
        (taking(), []),
        (taking(allocated=16 * MIB), []),
        (taking(allocated=16 * MIB + 1), ["allocated"]),
        (taking(reserved=20 * MIB), []),
        (taking(reserved=20 * MIB + 1), ["reserved"]),
        (taking(used=20 * MIB + 1), ["used"]),
        (taking(growth_bytes=16 * MIB + 1), ["growth per step"]),
        (taking(allocated=-GIB, reserved=-GIB, used=-GIB), []),
    ],
)
def test_each_level_is_held_against_the_lock(entry: Entry, names: list[str]) -> None:
    assert [one.name for one in check(entry).broken] == names


@pytest.mark.parametrize(
    ("budget", "name"),
    [
        (Budget(max_allocated_bytes=4 * GIB - 1), "allocated"),
        (Budget(max_reserved_bytes=5 * GIB - 1), "reserved"),
        (Budget(max_used_bytes=6 * GIB - 1), "used"),
        (Budget(headroom=Amount(2 * GIB + 1)), "headroom"),
        (Budget(headroom=Amount(share=Fraction(26, 100))), "headroom"),
    ],
)
def test_each_budget_is_held_without_a_lock_too(budget: Budget, name: str) -> None:
    found = check(LOCKED, budget, locked=None)
    (broken,) = found.broken
    assert (broken.rule, broken.name) == (Rule.BUDGET, name)


def test_a_budget_that_is_just_kept() -> None:
    budget = Budget(4 * GIB, 5 * GIB, 6 * GIB, Amount(share=Fraction(1, 4)), 0)
    found = check(LOCKED, budget)
    assert found.is_kept
    assert {one.name for one in found.judgements if one.rule is Rule.BUDGET} == {
        "allocated", "reserved", "used", "headroom", "growth per step"
    }  # fmt: skip


def test_growth_is_held_against_its_budget() -> None:
    (broken,) = check(taking(growth_bytes=512), Budget(growth_bytes=0)).broken
    assert (broken.name, broken.found_bytes, broken.limit_bytes) == ("growth per step", 512, 0)


def test_what_takes_less_passes_and_is_told() -> None:
    found = check(taking(allocated=-32 * MIB))
    assert found.is_kept and found.is_less
    assert not check(taking(allocated=-8 * MIB)).is_less


def test_another_torch_passes_only_with_the_same_memory() -> None:
    key = replace(KEY, torch="2.16.0")
    same = check(replace(LOCKED, key=key))
    assert same.is_kept
    assert same.changes.keys == (("torch", "2.15.0+cu132", "2.16.0"),)
    more = check(taking(allocated=GIB, key=key))
    assert not more.is_kept
    assert find_reasons(more, {}, None)[0] == (
        "torch: the lock holds for 2.15.0+cu132, this is 2.16.0"
    )


def test_what_grew_most_is_first() -> None:
    after = replace(
        LOCKED,
        categories={"parameter": 3 * GIB, "activation": 2 * GIB, "buffer": MIB},
        modules={"head": 3 * GIB, "blocks.*": 2 * GIB, "norm": MIB},
        places={"model.py in forward": 5 * GIB},
        findings=("UL111",),
    )
    changes = find_changes(LOCKED, after)
    assert [(row.name, row.changed_bytes) for row in changes.categories] == [
        ("activation", GIB), ("buffer", MIB)
    ]  # fmt: skip
    assert [row.name for row in changes.modules] == ["blocks.*"], "a thousandth of it is not told"
    comparison = check(replace(after, peaks=taking(allocated=GIB).peaks))
    reasons = find_reasons(comparison, {"model.py in forward": (70, 12)}, None)
    assert reasons[0].startswith("UL111, which was not found before: ")
    assert reasons[1] == "+1.00 GiB allocated at model.py:70,12 in forward"


@pytest.mark.parametrize(
    ("text", "whole", "size"),
    [("5%", 1000, 50), ("0.5%", 1000, 5), ("0%", 1000, 0), ("2MiB", 5, 2 * MIB), (512, 5, 512)],
)
def test_an_amount_is_bytes_or_a_share(text: str | int, whole: int, size: int) -> None:
    assert Amount.parse(text).of(whole) == size
