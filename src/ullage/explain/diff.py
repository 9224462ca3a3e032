"""Two snapshots compared at their peaks: what grew and shrank, by category and by source line, and
what that looks like.

Addresses, line numbers and torch's own frames differ from run to run, so blocks are compared by
category, file and function, and then by their sizes: as many blocks, each twice as large, are
another precision or batch; twice as many of the same size are something kept that was not.

    report = diff_snapshots(explain_snapshot(before), explain_snapshot(after))
    report.changed_bytes, report.causes
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from ullage.explain.ownership import CATEGORIES
from ullage.explain.snapshot import DeviceSnapshot, SnapshotReport
from ullage.trace.model import Category
from ullage.units import format_bytes

_LINE = re.compile(r":(\d+)( in |$)")
# Changes smaller than this share of the larger peak are not named as a cause.
_MIN_SHARE = 0.005
# Sites whose bytes grew by one factor, to this relative accuracy, grew for one reason.
_SAME_FACTOR = 0.02
_MIN_ALIKE = 3


@dataclass(frozen=True, slots=True)
class Side:
    """What the blocks of one place came to on one side."""

    size_bytes: int
    num_blocks: int
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One place in the code, or one category, on both sides.

    Attributes:
        name: "model.py in forward", or the category's name.
        category: of the blocks; None where the row is of several.
        looks_like: in words, what the numbers say of the change; empty for a category.
    """

    name: str
    category: Category | None
    before: Side
    after: Side
    looks_like: str = ""

    @property
    def changed_bytes(self) -> int:
        """More on the second side: positive."""
        return self.after.size_bytes - self.before.size_bytes


@dataclass(frozen=True, slots=True)
class DiffReport:
    """Two snapshots compared; of each the device with the highest peak.

    Attributes:
        before, after: the devices.
        by_category: every category that either side has.
        by_site: every place that changed, the largest change first.
        settings: the allocator's settings that differ, as (name, before, after).
        causes: what it comes to, in words, the largest first; empty where nothing changed.
        is_known: whether the categories of both sides were recorded, not guessed.
    """

    before: DeviceSnapshot
    after: DeviceSnapshot
    by_category: tuple[Change, ...]
    by_site: tuple[Change, ...]
    settings: tuple[tuple[str, object, object], ...]
    causes: tuple[str, ...]
    is_known: bool

    @property
    def changed_bytes(self) -> int:
        """By how much the peak of allocated bytes changed."""
        return _peak(self.after) - _peak(self.before)

    @property
    def changed_reserved_bytes(self) -> int:
        """By how much the peak of reserved bytes changed."""
        levels = (self.after.levels, self.before.levels)
        after, before = (int(level.reserved_bytes.max()) for level in levels)
        return after - before


def diff_snapshots(before: SnapshotReport, after: SnapshotReport) -> DiffReport | None:
    """Compares the peaks of two snapshots; None where one of them holds no device memory."""
    if not before.devices or not after.devices:
        return None
    first, second = (max(report.devices, key=_peak) for report in (before, after))
    sites = tuple(_compare_sites(_sum_sites(before, first), _sum_sites(after, second)))
    return DiffReport(
        before=first,
        after=second,
        by_category=tuple(_compare_categories(first, second)),
        by_site=sites,
        settings=tuple(_compare_settings(before.snapshot.settings, after.snapshot.settings)),
        causes=tuple(_find_causes(sites, max(_peak(first), _peak(second)))),
        is_known=first.owners.is_known and second.owners.is_known,
    )


def _peak(device: DeviceSnapshot) -> int:
    return int(device.levels.allocated_bytes.max())


def _compare_categories(first: DeviceSnapshot, second: DeviceSnapshot) -> Iterable[Change]:
    sides = [_count_categories(device) for device in (first, second)]
    for category in CATEGORIES:
        before, after = (side.get(category, Side(0, 0, ())) for side in sides)
        if before.size_bytes or after.size_bytes:
            yield Change(category.value, category, before, after)


def _count_categories(device: DeviceSnapshot) -> dict[Category, Side]:
    live = device.replay.blocks.is_live(device.peak_event)
    counts = np.bincount(device.owners.category[live], minlength=len(CATEGORIES))
    return {
        category: Side(size, int(counts[CATEGORIES.index(category)]), ())
        for category, size in device.owners_at_peak.items()
    }


# A place without its line, the code of a category, and the line; 0 where there is none.
_Key: TypeAlias = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class _Place:
    """The blocks of one place: how many of each size, and the lines they were made at."""

    sizes: Counter[int]
    lines: frozenset[int]

    def side(self) -> Side:
        """Their sums."""
        total = sum(size * count for size, count in self.sizes.items())
        return Side(total, self.sizes.total(), tuple(sorted(self.lines)))


_NOWHERE = _Place(Counter(), frozenset())


def _sum_sites(report: SnapshotReport, device: DeviceSnapshot) -> dict[_Key, _Place]:
    """The blocks at the peak by place, category and line."""
    blocks = device.replay.blocks
    numbers = np.flatnonzero(blocks.is_live(device.peak_event))
    found: dict[_Key, Counter[int]] = {}
    rows = zip(
        report.sites.of_stack[blocks.stack[numbers]].tolist(),
        device.owners.category[numbers].tolist(),
        blocks.size_bytes[numbers].tolist(),
        strict=True,
    )
    for (site, category, size), count in Counter(rows).items():
        name = report.sites.names[site]
        match = _LINE.search(name)
        key = (_LINE.sub(r"\2", name), category, int(match[1]) if match else 0)
        found.setdefault(key, Counter())[size] += count
    return {
        key: _Place(sizes, frozenset({key[2]} if key[2] else ())) for key, sizes in found.items()
    }


def _compare_sites(before: Mapping[_Key, _Place], after: Mapping[_Key, _Place]) -> list[Change]:
    """Line by line where a function's lines are the same on both sides, else function by function:
    its code has moved.
    """
    lines = _lines_of(before), _lines_of(after)
    moved = {name for name in lines[0].keys() & lines[1].keys() if lines[0][name] != lines[1][name]}
    before, after = _join_lines(before, moved), _join_lines(after, moved)
    changes = []
    for key in dict.fromkeys((*before, *after)):
        one, two = before.get(key, _NOWHERE), after.get(key, _NOWHERE)
        if one.sizes != two.sizes:
            name, category, line = key
            name = name.replace(" in ", f":{line} in ", 1) if line else name
            changes.append(
                Change(name, CATEGORIES[category], one.side(), two.side(), _looks_like(one, two))
            )
    return sorted(changes, key=lambda change: -abs(change.changed_bytes))


def _lines_of(places: Mapping[_Key, _Place]) -> dict[str, frozenset[int]]:
    """The lines of each function that make blocks."""
    found: dict[str, set[int]] = {}
    for name, _, line in places:
        found.setdefault(name, set()).add(line)
    return {name: frozenset(lines) for name, lines in found.items()}


def _join_lines(places: Mapping[_Key, _Place], moved: Collection[str]) -> dict[_Key, _Place]:
    """The places of functions that have moved, without their lines."""
    joined: dict[_Key, _Place] = {}
    for (name, category, line), place in places.items():
        key = (name, category, 0 if name in moved else line)
        known = joined.get(key, _NOWHERE)
        joined[key] = _Place(known.sizes + place.sizes, known.lines | place.lines)
    return joined


def _looks_like(one: _Place, two: _Place) -> str:
    """What the sizes say of a change."""
    before, after = one.side(), two.side()
    if not before.num_blocks:
        return f"new: {after.num_blocks} blocks"
    if not after.num_blocks:
        return f"gone: {before.num_blocks} blocks"
    if before.num_blocks == after.num_blocks:
        factor = _factor(before.size_bytes, after.size_bytes)
        return f"as many blocks, {factor} as large"
    if set(one.sizes) == set(two.sizes):
        return f"{before.num_blocks} to {after.num_blocks} blocks of the same sizes"
    return f"{before.num_blocks} to {after.num_blocks} blocks, of other sizes"


def _factor(before: int, after: int) -> str:
    """A ratio as people say it: 2x, 1/2, 1.37x."""
    ratio = Fraction(after, before).limit_denominator(16)
    is_close = abs(float(ratio) * before - after) <= _SAME_FACTOR * after
    if is_close and ratio.denominator == 1 and ratio != 1:
        return f"{ratio.numerator}x"
    if is_close and ratio.numerator == 1:
        return f"1/{ratio.denominator}"
    return f"{after / before:.2f}x"


def _compare_settings(
    before: Mapping[str, object], after: Mapping[str, object]
) -> Iterable[tuple[str, object, object]]:
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield name, before.get(name), after.get(name)


def _find_causes(sites: tuple[Change, ...], peak_bytes: int) -> Iterable[str]:
    """What many places have in common first, then the places by themselves."""
    large = [site for site in sites if abs(site.changed_bytes) >= _MIN_SHARE * peak_bytes]
    alike: dict[str, list[Change]] = {}
    for site in large:
        alike.setdefault(site.looks_like, []).append(site)
    told: set[str] = set()
    for looks_like, members in alike.items():
        if len(members) >= _MIN_ALIKE and looks_like.startswith("as many"):
            told |= {member.name for member in members}
            changed = sum(member.changed_bytes for member in members)
            yield (
                f"{signed(changed)}: {len(members)} places have {looks_like}, as with another "
                "batch, sequence length or precision; the largest is " + members[0].name
            )
    for site in large:
        if site.name not in told:
            owner = site.category.value.replace("_", " ") if site.category else "blocks"
            yield f"{signed(site.changed_bytes)}: {owner} at {site.name} ({site.looks_like})"


def signed(num_bytes: int) -> str:
    """A change in bytes for people, with its sign."""
    return f"{'+' if num_bytes > 0 else ''}{format_bytes(num_bytes, 2)}"
