"""Rules, and their findings."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated

from ullage.explain.rules.case import Case
from ullage.explain.trial import MakesItFit, Relief, Trial
from ullage.ground.protocol.plain import As, Mark
from ullage.log.snapshot import Int64Array


class Kind(enum.Enum):
    """The kind of a finding."""

    FAULT = "fault"  # memory without any use
    CHOICE = "choice"  # memory that can be saved at a cost
    TIME = "time"  # no device memory: host and GPU wait for each other


@dataclass(frozen=True, slots=True)
class Found:
    """A rule's finding on one device.

    Attributes:
        what: one sentence with the figures.
        evidence: the data that supports it, in lines.
        gain_bytes: by how much the peak falls at most.
        change: the exact change, where it is more specific than the rule's text.
        blocks: its blocks, as numbers in `Replay.blocks`.
        is_guess: whether it rests on guessed owners, or on sizes alone.
        relief: the effect of the change on the trace; None where a trace cannot show it.
    """

    what: str
    evidence: tuple[str, ...]
    gain_bytes: int
    change: str = ""
    blocks: Int64Array | None = None
    is_guess: bool = False
    relief: Relief | None = None


def found_at(
    case: Case,
    blocks: Int64Array,
    what: str,
    gain_bytes: int,
    relief: Relief | None = None,
    *,
    evidence: tuple[str, ...] = (),
    change: str = "",
    is_guess: bool = False,
) -> Found:
    """The finding of a rule in some blocks, whose sites follow the evidence."""
    evidence = (*evidence, *case.list_sites(blocks))
    return Found(what, evidence, gain_bytes, change, blocks, is_guess, relief)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule; `ullage explain CODE` prints its texts.

    Attributes:
        code: such as UL101; never used again for another rule.
        title: of its findings.
        kind: of its findings.
        meaning: what a finding means.
        evidence: the data that the rule examines, and its thresholds.
        cost: what the change costs.
        change: what to do.
        find: examines one device.
        is_general: whether another rule that finds the same blocks takes precedence.
        is_last: whether it is told only where no other rule finds anything.
    """

    code: str
    title: str
    kind: Kind
    meaning: Annotated[str, Mark.NO_KEY]
    evidence: Annotated[str, Mark.NO_KEY]
    cost: str
    change: Annotated[str, Mark.NO_KEY]
    find: Annotated[Callable[[Case], Iterator[Found]], Mark.NO_KEY] = field(repr=False)
    is_general: Annotated[bool, Mark.NO_KEY] = False
    is_last: Annotated[bool, Mark.NO_KEY] = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of a rule on a device.

    Attributes:
        is_fatal: whether it ended the program.
        trial: whether its change makes the program fit; None: this was not tried.
    """

    rule: Annotated[Rule, Mark.FLAT]
    device: int
    what: str
    evidence: tuple[str, ...]
    gain_bytes: int
    change: str
    is_guess: bool
    is_fatal: Annotated[bool, Mark.NO_KEY] = False
    blocks: Annotated[Int64Array | None, Mark.NO_KEY] = field(default=None, repr=False)
    relief: Annotated[Relief | None, Mark.NO_KEY] = field(default=None, repr=False)
    trial: Annotated[Trial | None, As("tried")] = None

    def is_said(self, answer: MakesItFit) -> bool:
        """True if this came of trying its change."""
        return self.trial is not None and self.trial.makes_it_fit is answer
