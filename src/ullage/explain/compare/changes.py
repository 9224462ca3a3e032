"""Compares the live blocks at a moment of one run with the blocks at a moment of another, by
category, by module and by site in the code.

Addresses, line numbers and torch's own frames differ between runs, so blocks are compared by
category, file and function, and then by size. The same number of blocks, each twice as large,
indicates another precision or batch; twice as many of the same size indicate that something is kept
that was freed before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np

from ullage.explain.owners.modules import merge_numbered, share_by_module
from ullage.explain.owners.ownership import CATEGORIES
from ullage.explain.snapshot import DeviceSnapshot, SnapshotReport
from ullage.ground.protocol.plain import As, figure
from ullage.ground.units import format_bytes
from ullage.log.model import Category

LINE = re.compile(r":(\d+)( in |$)")
# Sizes whose growth factors agree to this relative accuracy grew for the same reason.
SAME_FACTOR = 0.02


@dataclass(frozen=True, slots=True)
class Side:
    """The total size and number of the blocks of one site in one run."""

    size_bytes: Annotated[int, As("bytes")]
    num_blocks: Annotated[int, As("blocks")]
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One site in the code, or one category, in both runs.

    Attributes:
        name: "model.py in forward", or the category's name.
        category: the category of the blocks; None where the row covers several.
        looks_like: what the numbers suggest about the change, in words; empty for a category.
    """

    name: str
    category: Category | None
    before: Side
    after: Side
    looks_like: str = ""

    @figure
    def changed_bytes(self) -> int:
        """The change; positive if the second run has more."""
        return self.after.size_bytes - self.before.size_bytes


class Moment(NamedTuple):
    """An event on one device; its blocks are those live after the event. `last` is the last event
    that is compared; None: that of the trace.
    """

    report: SnapshotReport
    device: DeviceSnapshot
    event: int
    last: int | None = None


def compare_categories(before: Moment, after: Moment) -> Iterable[Change]:
    """Yields every category that occurs in either run."""
    sides = []
    for moment in (before, after):
        blocks = moment.device.replay.blocks
        live = blocks.is_live(moment.event)
        codes = moment.device.owners.category[live]
        counts = np.bincount(codes, minlength=len(CATEGORIES))
        sums = np.zeros(len(CATEGORIES), dtype=np.int64)
        np.add.at(sums, codes, blocks.size_bytes[live])
        sides.append(list(map(Side, sums.tolist(), counts.tolist())))
    for category, old_side, new_side in zip(CATEGORIES, *sides, strict=True):
        if old_side.size_bytes or new_side.size_bytes:
            yield Change(category.value, category, old_side, new_side)


@dataclass(frozen=True, slots=True)
class ModuleChange:
    """One module in both runs, or several whose paths differ only in numbers, as "layers.*.mlp";
    the path None stands for allocations outside every module.
    """

    path: str | None
    before_bytes: int
    after_bytes: int

    @figure
    def changed_bytes(self) -> int:
        """The change; positive if the second run has more."""
        return self.after_bytes - self.before_bytes


def compare_modules(before: Moment, after: Moment) -> list[ModuleChange]:
    """Returns every module that changed, the largest first; none unless ullage recorded both."""
    sides = []
    for moment in (before, after):
        blocks, owners = moment.device.replay.blocks, moment.device.owners.modules
        if owners is None:
            return []
        shares = share_by_module(owners, blocks.is_live(moment.event), blocks.size_bytes)
        sides.append({share.path: share.size_bytes for share in merge_numbered(shares)})
    changes = [
        ModuleChange(path, *(side.get(path, 0) for side in sides))
        for path in dict.fromkeys((*sides[0], *sides[1]))
    ]
    changed = [change for change in changes if change.changed_bytes]
    return sorted(changed, key=lambda change: -abs(change.changed_bytes))


def compare_sites(before: Moment, after: Moment) -> list[Change]:
    """Returns every site that changed, the largest change first.

    Sites are compared by line where a function has the same lines in both runs, otherwise by
    function, because its code has moved.
    """
    places = _sum_sites(before), _sum_sites(after)
    lines = _lines_of(places[0]), _lines_of(places[1])
    moved = {name for name in lines[0].keys() & lines[1].keys() if lines[0][name] != lines[1][name]}
    old, new = (_join_lines(place, moved) for place in places)
    changes = []
    for key in dict.fromkeys((*old, *new)):
        old_place, new_place = old.get(key, _NOWHERE), new.get(key, _NOWHERE)
        if old_place.sizes != new_place.sizes:
            name, category, line = key
            name = name.replace(" in ", f":{line} in ", 1) if line else name
            changes.append(
                Change(
                    name,
                    CATEGORIES[category],
                    old_place.side(),
                    new_place.side(),
                    _looks_like(old_place, new_place),
                )
            )
    return sorted(changes, key=lambda change: -abs(change.changed_bytes))


# A site without its line, the code of a category, and the line (0 where there is none).
_Key: TypeAlias = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class _Place:
    """The blocks of one site: the number of each size, and the lines that allocated them."""

    sizes: Counter[int]
    lines: frozenset[int]

    def side(self) -> Side:
        """Returns their totals."""
        total = sum(size * count for size, count in self.sizes.items())
        return Side(total, self.sizes.total(), tuple(sorted(self.lines)))


_NOWHERE = _Place(Counter(), frozenset())


def _sum_sites(moment: Moment) -> dict[_Key, _Place]:
    blocks, sites = moment.device.replay.blocks, moment.report.sites
    numbers = np.flatnonzero(blocks.is_live(moment.event))
    sizes_by_key: dict[_Key, Counter[int]] = {}
    rows = zip(
        sites.of_stack[blocks.stack[numbers]].tolist(),
        moment.device.owners.category[numbers].tolist(),
        blocks.size_bytes[numbers].tolist(),
        strict=True,
    )
    for (site, category, size), count in Counter(rows).items():
        name = sites.names[site]
        match = LINE.search(name)
        key = (LINE.sub(r"\2", name), category, int(match[1]) if match else 0)
        sizes_by_key.setdefault(key, Counter())[size] += count
    return {
        key: _Place(sizes, frozenset({key[2]} if key[2] else ()))
        for key, sizes in sizes_by_key.items()
    }


def _lines_of(places: Mapping[_Key, _Place]) -> dict[str, frozenset[int]]:
    lines_by_name: dict[str, set[int]] = {}
    for name, _, line in places:
        lines_by_name.setdefault(name, set()).add(line)
    return {name: frozenset(lines) for name, lines in lines_by_name.items()}


def _join_lines(places: Mapping[_Key, _Place], moved: Collection[str]) -> dict[_Key, _Place]:
    joined: dict[_Key, _Place] = {}
    for (name, category, line), place in places.items():
        key = (name, category, 0 if name in moved else line)
        known = joined.get(key, _NOWHERE)
        joined[key] = _Place(known.sizes + place.sizes, known.lines | place.lines)
    return joined


def _looks_like(place: _Place, two: _Place) -> str:
    """Describes what the sizes suggest about a change."""
    before, after = place.side(), two.side()
    if not before.num_blocks:
        return f"new: {_blocks(after.num_blocks)}"
    if not after.num_blocks:
        return f"gone: {_blocks(before.num_blocks)}"
    is_close = abs(after.size_bytes - before.size_bytes) <= SAME_FACTOR * before.size_bytes
    if before.num_blocks == after.num_blocks and is_close:
        return "as many blocks, of nearly the same sizes"
    if before.num_blocks == after.num_blocks:
        return f"as many blocks, {describe_factor(before.size_bytes, after.size_bytes)} as large"
    if set(place.sizes) == set(two.sizes):
        return f"{before.num_blocks} to {_blocks(after.num_blocks)} of the same sizes"
    return f"{before.num_blocks} to {_blocks(after.num_blocks)}, of other sizes"


def _blocks(count: int) -> str:
    return f"{count} block{'s' * (count != 1)}"


def describe_factor(before: int, after: int) -> str:
    """Formats a ratio for people: 2x, 1/2, 1.37x."""
    ratio = Fraction(after, before).limit_denominator(64)
    is_close = abs(float(ratio) * before - after) <= SAME_FACTOR * after
    if is_close and ratio.denominator == 1 and ratio != 1:
        return f"{ratio.numerator}x"
    if is_close and ratio.numerator == 1 and ratio != 1:
        return f"1/{ratio.denominator}"
    return f"{after / before:.2f}x"


def signed(num_bytes: int) -> str:
    """Formats a change in bytes for people, with its sign."""
    return f"{'+' if num_bytes > 0 else ''}{format_bytes(num_bytes, 2)}"
