"""The parts of an answer of `ullage estimate`; they add up to the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from ullage.ground.protocol.plain import figure
from ullage.log.category import Category

ESTIMATE_SCHEMA: Final = "ullage.estimate/2"
"""The documents of all estimates."""


class Interval(NamedTuple):
    """Bytes: a lower bound, the likely value and an upper bound."""

    low: int
    likely: int
    high: int


class Verdict(Enum):
    """The verdict on a plan."""

    FITS = "fits"
    MAY_FIT = "may_fit"
    DOES_NOT_FIT = "does_not_fit"

    @property
    def fits(self) -> bool | None:
        """True: even where all takes the most; False: not even at the least; None: between."""
        return None if self is Verdict.MAY_FIT else self is Verdict.FITS

    @property
    def label(self) -> str:
        """As people read it."""
        return self.value.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a GPU's memory.

    Attributes:
        name: such as "weights".
        bytes: most likely.
        low_bytes, high_bytes: what it may be.
        what: what is counted, in a sentence.
        source: where the rule comes from.
    """

    name: str
    bytes: int
    low_bytes: int
    high_bytes: int
    what: str
    source: str

    @property
    def ends(self) -> tuple[int, int, int]:
        """Low, likely, high; no less than nothing."""
        return max(0, self.low_bytes), max(0, self.bytes), max(0, self.high_bytes)


def left_of(
    name: str, total_bytes: int, terms: Sequence[Term], what: str,
    source: str = "what the others leave",
) -> Term:  # fmt: skip
    """The rest of some bytes after terms: the least where they take the most."""
    likely, low, high = (
        total_bytes - sum(getattr(term, end) for term in terms)
        for end in ("bytes", "high_bytes", "low_bytes")
    )
    return Term(name, likely, low, high, what, source)


def exact(name: str, size: int, what: str, source: str = "counted") -> Term:
    """A part of which the size is known."""
    return Term(name, size, size, size, what, source)


@dataclass(frozen=True, slots=True)
class OwnedTerm(Term):
    """The same of a program's peak.

    Attributes:
        category: who owns it; UNATTRIBUTED outside PyTorch's tensors.
    """

    category: Category = Category.UNATTRIBUTED


class Parts:
    """The parts of a memory.

    Attributes:
        capacity_bytes: its size; None: not given.
        terms: the parts.
        is_floor: something is missing.
    """

    __slots__ = ()
    capacity_bytes: int | None
    is_floor: bool = False
    terms: tuple[Term, ...]

    @property
    def bytes(self) -> int:
        """The likely bytes."""
        return sum(term.bytes for term in self.terms)

    @property
    def low_bytes(self) -> int:
        """At least."""
        return sum(term.low_bytes for term in self.terms)

    @property
    def high_bytes(self) -> int:
        """At most."""
        return sum(term.high_bytes for term in self.terms)

    @figure
    def verdict(self) -> Verdict | None:
        """The verdict on the whole; None: the size is not given, or a mere floor fits."""
        if self.capacity_bytes is None:
            return None
        if self.low_bytes > self.capacity_bytes:
            return Verdict.DOES_NOT_FIT
        if self.is_floor:
            return None
        return Verdict.FITS if self.high_bytes <= self.capacity_bytes else Verdict.MAY_FIT
