"""The parts of an answer of `ullage estimate`; they add up to the whole."""

from __future__ import annotations

from dataclasses import dataclass

from ullage.trace.category import Category

__all__ = ["OwnedTerm", "Term"]


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


@dataclass(frozen=True, slots=True)
class OwnedTerm(Term):
    """The same of a program's peak.

    Attributes:
        category: who owns it; UNATTRIBUTED outside PyTorch's tensors.
    """

    category: Category = Category.UNATTRIBUTED
