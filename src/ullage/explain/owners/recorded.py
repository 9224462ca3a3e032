"""Findings about a device that need a run recorded by ullage: dead blocks at the peak, copies in
every step, pinned memory, and the memory of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ullage.explain.moments.course import Course
from ullage.explain.moments.growth import Growth
from ullage.explain.moments.levels import Levels
from ullage.explain.owners.dead_weight import DeadWeight, find_dead_weight
from ullage.explain.owners.holders import Holders, find_holders
from ullage.explain.owners.matching import Match
from ullage.explain.owners.owners import Owners
from ullage.explain.tokens import TokenGrowth, find_token_growth
from ullage.explain.transfers import Pinned, Transfers, find_pinned, find_transfers
from ullage.trace.replay import Replay


@dataclass(frozen=True, slots=True)
class Recorded:
    """The parts of a record that describe a device. A field is None if the record, perhaps an older
    one, does not have it.

    Attributes:
        dead: the blocks that were live at the peak and not used any more.
        transfers: the copies between host and device that most steps make.
        pinned: the pinned memory of the host.
        tokens: the cache of a program that generates tokens; None also if there is no cache.
        holders: the names of the variables that keep blocks alive.
    """

    dead: DeadWeight | None
    transfers: tuple[Transfers, ...] | None
    pinned: Pinned | None
    tokens: TokenGrowth | None
    holders: Holders


def find_recorded(
    match: Match,
    replay: Replay,
    levels: Levels,
    owners: Owners,
    course: Course,
    *,
    growth: Sequence[Growth],
) -> Recorded:
    """Finds what the record of a run says about one device."""
    return Recorded(
        dead=find_dead_weight(match, replay, levels, owners.category, course),
        transfers=find_transfers(match, replay, course),
        pinned=find_pinned(match, course),
        tokens=find_token_growth(growth, replay, owners.category, course),
        holders=find_holders(match),
    )
