"""What only a run that ullage recorded tells of a device: what was dead at the peak, what was
copied in every step, how much was pinned, what a token costs.
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
    """Each is None where the record, which may be an older one, does not tell.

    Attributes:
        dead: what was live at the peak and not used any more.
        transfers: the copies between host and device that most steps have.
        pinned: pinned memory of the host.
        tokens: the cache of a program that generates; None also where there is none.
        holders: the names that the program had for what it held.
    """

    dead: DeadWeight | None
    transfers: tuple[Transfers, ...] | None
    pinned: Pinned | None
    tokens: TokenGrowth | None
    holders: Holders


@dataclass(frozen=True, slots=True)
class Lives:
    """What is known of a device before that: its blocks, their owners, what the program did."""

    replay: Replay
    levels: Levels
    owners: Owners
    course: Course
    growth: Sequence[Growth]


def find_recorded(match: Match, lives: Lives, device: int) -> Recorded:
    """What the record of a run tells of one device."""
    replay, course, category = lives.replay, lives.course, lives.owners.category
    return Recorded(
        dead=find_dead_weight(match, replay, lives.levels, category, course),
        transfers=find_transfers(match, replay, course, device),
        pinned=find_pinned(match, replay, course),
        tokens=find_token_growth(lives.growth, replay, category, course),
        holders=find_holders(match),
    )
