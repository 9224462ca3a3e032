"""Which products of a block are worth keeping: of all sets of them, those that no other beats.

A block's product that is not kept is computed again where backward needs what comes of it: so many
operations more, so many bytes less. Both are measured, of each product by itself, as what a step
takes less and more when all are kept but that one. Of several at once they are added up: what is
computed again of one product does not hang on the others, as those that backward needs are either
kept or computed again themselves. The runs of plans show how well that holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ullage.search.costs.profile import Profile

# A product whose loss costs less than this share of all of them is none that backward needs.
_FEW = 1e-3


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step takes with all blocks alike.

    Attributes:
        profile: its memory.
        flops: its floating-point operations.
    """

    profile: Profile
    flops: float

    @property
    def kept_bytes(self) -> int:
        """Of all blocks."""
        return int(self.profile.kept_bytes.sum())


class Kept(NamedTuple):
    """Products that are kept, by their order, and what a step takes then."""

    numbers: tuple[int, ...]
    cost: Cost


def sets_worth_keeping(every: Cost, without: Sequence[Cost], nothing: Cost) -> list[Kept]:
    """Sets of products, those that keep most first, each computing more than the one before it.

    Args:
        every: all products kept.
        without: for each product all kept but that one.
        nothing: none kept.
    """
    least = _FEW * (nothing.flops - every.flops)
    needed = [place for place, one in enumerate(without) if one.flops - every.flops > least]
    found = [Kept((), nothing)]
    for num in range(1, len(needed) + 1):
        for kept in itertools.combinations(needed, num):
            gone = [one for place, one in enumerate(without) if place not in kept]
            found.append(Kept(kept, _added(every, gone)))
    return _unbeaten(found)


def _added(every: Cost, gone: Sequence[Cost]) -> Cost:
    """All products kept but several."""
    kept = every.profile.kept_bytes.copy()
    rest = dict(every.profile.rest_bytes)
    for one in gone:
        kept += one.profile.kept_bytes - every.profile.kept_bytes
        for stretch, before in every.profile.rest_bytes.items():
            rest[stretch] += one.profile.rest_bytes.get(stretch, before) - before
    return Cost(
        replace(every.profile, kept_bytes=kept, rest_bytes=rest),
        every.flops + sum(one.flops - every.flops for one in gone),
    )


def _unbeaten(sets: Sequence[Kept]) -> list[Kept]:
    """Those of which no other keeps as little and computes as little."""
    found: list[Kept] = []
    for one in sorted(sets, key=lambda one: (one.cost.flops, one.cost.kept_bytes)):
        if not found or one.cost.kept_bytes < found[-1].cost.kept_bytes:
            found.append(one)
    return found


def settings(numbers: Sequence[int]) -> tuple[str, Mapping[str, str]]:
    """The technique that keeps these products, and its settings."""
    if not numbers:
        return "checkpoint", {}
    return "selective_checkpoint", {"saves": ",".join(map(str, numbers))}
