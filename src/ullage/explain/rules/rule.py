"""What a rule is, and what it finds."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ullage.explain.rules.case import Case
from ullage.explain.trial import Relief, Trial
from ullage.trace.snapshot import Int64Array


class Kind(enum.Enum):
    """What sort of thing a rule finds."""

    FAULT = "fault"  # memory that buys nothing
    CHOICE = "choice"  # memory that could be had for a price
    TIME = "time"  # no device memory: host and GPU wait for each other


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule saw.

    Attributes:
        what: one sentence with the figures.
        evidence: what in the data says so, a line each.
        gain_bytes: by how much the peak would be lower, at most.
        change: the exact change, where the data says more than the rule's own text.
        blocks: numbers in `Replay.blocks` of what it is about.
        is_guess: whether owners were guessed, or sizes alone speak for it.
        relief: what the change does to the trace; None where a trace cannot show it.
    """

    what: str
    evidence: tuple[str, ...]
    gain_bytes: int
    change: str = ""
    blocks: Int64Array | None = None
    is_guess: bool = False
    relief: Relief | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: `ullage explain --rule CODE` prints what it says of itself.

    Attributes:
        code: as UL101; never given to another rule.
        title: of what it finds.
        meaning: what it means when it does.
        evidence: what it looks at, and what it takes.
        cost: what the change costs.
        change: what to do.
        find: looks at one device.
        is_general: gives way to another rule that finds the same blocks.
    """

    code: str
    title: str
    kind: Kind
    meaning: str
    evidence: str
    cost: str
    change: str
    find: Callable[[Case], Iterator[Found]] = field(repr=False)
    is_general: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found on a device; `trial` is whether its change makes the program fit, None
    where that was not asked.
    """

    rule: Rule
    device: int
    what: str
    evidence: tuple[str, ...]
    gain_bytes: int
    change: str
    is_guess: bool
    is_fatal: bool = False  # it ended the program
    blocks: Int64Array | None = field(default=None, repr=False)
    relief: Relief | None = field(default=None, repr=False)
    trial: Trial | None = None
