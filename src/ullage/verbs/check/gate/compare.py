"""Compares a run with its lock and its budget: what is violated, and what changed.

found = compare("train", measured.entry, locked, budget, tolerance, total_bytes)
found.is_kept, [one.text for one in found.broken]
found.changes.modules[0]                    # Changed("blocks.*.up", 1868562432, 3737124864)
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from ullage.explain.basis import BasisKind
from ullage.ground.protocol.plain import figure
from ullage.verbs.check.gate.budget import DEFAULT_SHARE, Allowed, Amount, Budget, allowed_growth
from ullage.verbs.check.gate.lock import Entry, Key, Peaks, ServedFigures
from ullage.verbs.check.gate.scenario import Serving

# What a change is told of: at least this share of what changed most.
_TOLD_SHARE = 0.05


class Rule(enum.Enum):
    """The rule that a level is compared with."""

    LOCK = "lock"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class Judgement:
    """One level compared with one limit.

    Attributes:
        name: of the level: "allocated", "reserved", "used", "headroom", "growth per step"; of a
            server "cache tokens" or "good requests", which are counts and no bytes.
        found_bytes: what it is.
        limit_bytes: what it may be at most; of a headroom and of counts at least.
    """

    rule: Rule
    name: str
    found_bytes: int
    limit_bytes: int

    @property
    def is_kept(self) -> bool:
        """True if the level is within the limit."""
        if self.name == HEADROOM or self.is_count:
            return self.found_bytes >= self.limit_bytes
        return self.found_bytes <= self.limit_bytes

    @property
    def is_count(self) -> bool:
        """True if it is not a number of bytes."""
        return self.name in (TOKENS, GOOD)


HEADROOM, GROWTH = "headroom", "growth per step"
TOKENS, GOOD = "cache tokens", "good requests"


@dataclass(frozen=True, slots=True)
class Changed:
    """An owner with its bytes when locked and now."""

    name: str
    before_bytes: int
    after_bytes: int

    @figure
    def changed_bytes(self) -> int:
        """The difference; positive where it is more now."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class Changes:
    """The owners whose bytes at the peak changed since the lock, the largest change first.

    Attributes:
        categories: every one that changed.
        modules, places: those whose change is of some size.
        findings: codes that `ullage explain` has now and had not.
        keys: what else differs, such as the version of torch: name, before, after.
    """

    categories: tuple[Changed, ...] = ()
    modules: tuple[Changed, ...] = ()
    places: tuple[Changed, ...] = ()
    findings: tuple[str, ...] = ()
    keys: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """One device of a case compared with its lock and its budget.

    Attributes:
        name: of the entry in the lock, such as "train/batch=8".
        entry: what it took.
        locked: what it took when it was locked; None where it was not.
        judgements: every level that is held against something.
        changes: since it was locked.
        is_less: whether a peak is below the lock by more than the tolerance.
    """

    name: str
    entry: Entry
    locked: Entry | None
    judgements: tuple[Judgement, ...]
    changes: Changes
    is_less: bool

    @property
    def broken(self) -> tuple[Judgement, ...]:
        """The checks that fail."""
        return tuple(judgement for judgement in self.judgements if not judgement.is_kept)

    @property
    def is_kept(self) -> bool:
        """True if every check passes."""
        return not self.broken


def compare(
    name: str,
    entry: Entry,
    locked: Entry | None,
    *,
    budget: Budget,
    tolerance: Amount | None,
    total_bytes: int | None,
    serving: Serving | None = None,
) -> Comparison:
    """Compares the figures of a device with its lock, if it has one, and its budget.

    total_bytes: of the device; None where it never runs out.
    serving: what a server must hold; None: it is none.
    """
    allowed = None if locked is None else allowed_growth(tolerance, locked.peaks)
    judgements = [*_judge_budget(entry, budget, total_bytes)]
    if locked is not None and allowed is not None:
        judgements += _judge_lock(entry, locked, allowed)
    if serving is not None and entry.served is not None:
        before = None if locked is None else locked.served
        judgements += _judge_served(entry.served, before, serving, tolerance)
    return Comparison(
        name, entry, locked, tuple(judgements),
        Changes() if locked is None else find_changes(locked, entry),
        is_less=locked is not None
        and allowed is not None
        and any(_levels(locked.peaks)[level_name] - level > getattr(allowed, f"{level_name}_bytes")
                for level_name, level in _levels(entry.peaks).items()),
    )  # fmt: skip


def _levels(peaks: Peaks) -> dict[str, int]:
    return {
        "allocated": peaks.allocated_bytes,
        "reserved": peaks.reserved_bytes,
        "used": peaks.used_bytes,
    }


def _judge_budget(entry: Entry, budget: Budget, total_bytes: int | None) -> Iterator[Judgement]:
    for name, level in _levels(entry.peaks).items():
        limit: int | None = getattr(budget, f"max_{name}_bytes")
        if limit is not None:
            yield Judgement(Rule.BUDGET, name, level, limit)
    if budget.headroom is not None and total_bytes is not None:
        left = total_bytes - entry.peaks.used_bytes
        yield Judgement(Rule.BUDGET, HEADROOM, left, budget.headroom.of(total_bytes))
    if budget.growth_bytes is not None and entry.growth_bytes is not None:
        yield Judgement(Rule.BUDGET, GROWTH, entry.growth_bytes, budget.growth_bytes)


def _judge_lock(entry: Entry, locked: Entry, allowed: Allowed) -> Iterator[Judgement]:
    before = _levels(locked.peaks)
    for name, level in _levels(entry.peaks).items():
        limit = before[name] + getattr(allowed, f"{name}_bytes")
        yield Judgement(Rule.LOCK, name, level, limit)
    if entry.growth_bytes is not None and locked.growth_bytes is not None:
        limit = max(locked.growth_bytes, 0) + allowed.allocated_bytes
        yield Judgement(Rule.LOCK, GROWTH, entry.growth_bytes, limit)


def _judge_served(
    served: ServedFigures, locked: ServedFigures | None, serving: Serving, tolerance: Amount | None
) -> Iterator[Judgement]:
    """Tokens that the cache lost since the lock, and requests that miss the objective."""
    needed = math.ceil(round(serving.goodput_frac * served.requests, 6))
    yield Judgement(Rule.BUDGET, GOOD, served.good_requests, needed)
    if serving.least_tokens is not None:
        yield Judgement(Rule.BUDGET, TOKENS, served.cache_tokens, serving.least_tokens)
    if locked is not None:
        share = DEFAULT_SHARE if tolerance is None or not tolerance.share else tolerance.share
        least = locked.cache_tokens - int(share * locked.cache_tokens)
        yield Judgement(Rule.LOCK, TOKENS, served.cache_tokens, least)


def find_changes(before: Entry, after: Entry) -> Changes:
    """The differences between two entries."""
    categories = _compare(before.categories, after.categories)
    modules, places = (
        _of_some_size(_compare(*sides))
        for sides in ((before.modules, after.modules), (before.places, after.places))
    )
    new = (code for code in after.findings if code not in before.findings)
    return Changes(categories, modules, places, tuple(new), tuple(_compare_keys(before, after)))


def _compare(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[Changed, ...]:
    """Every owner whose bytes changed, the largest growth first."""
    names = dict.fromkeys((*after, *before))
    rows = [Changed(name, before.get(name, 0), after.get(name, 0)) for name in names]
    changed = [row for row in rows if row.changed_bytes]
    return tuple(sorted(changed, key=lambda row: (-abs(row.changed_bytes), row.name)))


def _of_some_size(rows: tuple[Changed, ...]) -> tuple[Changed, ...]:
    most = max((abs(row.changed_bytes) for row in rows), default=0)
    return tuple(row for row in rows if abs(row.changed_bytes) >= _TOLD_SHARE * most)


def _compare_keys(before: Entry, after: Entry) -> Iterator[tuple[str, str, str]]:
    for field in fields(Key):
        sides = getattr(before.key, field.name), getattr(after.key, field.name)
        if sides[0] != sides[1]:
            yield (field.name, *sides)
    if before.basis is not after.basis and BasisKind.MEASURED in {before.basis, after.basis}:
        yield ("basis", before.basis.value, after.basis.value)
