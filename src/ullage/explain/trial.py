"""The outcome of trying the remedy of a finding: does it make the program fit?

YES is said only of what was tried, or replayed through PyTorch's allocator on a trace that shows
whole steps. NO may be arithmetic alone: a remedy that frees less than was missing cannot help.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from ullage.ground.protocol.plain import As
from ullage.log.snapshot import Int64Array


class MakesItFit(enum.Enum):
    """The answer to whether a remedy makes a program fit that ran out of memory."""

    YES = "yes"
    NO = "no"
    NOT_KNOWN = "not_known"

    @property
    def label(self) -> str:
        """As people read it."""
        return self.value.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Trial:
    """The trial of a remedy.

    Attributes:
        makes_it_fit: the answer.
        reason: how it is known, or why it is not.
        peak_bytes: the most that is allocated under the remedy, as far as the trace or the run
            goes; None where that is not known.
        plan: the plan that it was run under, as `ullage run --plan` takes it; None where the remedy
            was not tried under one.
    """

    makes_it_fit: MakesItFit
    reason: str
    peak_bytes: Annotated[int | None, As("bytes")] = None
    plan: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Relief:
    """The changes of a trace by a remedy: some blocks end earlier, become smaller, or never come.

    Attributes:
        blocks: their numbers in `Replay.blocks`.
        death: the event that would end each; None: they never come, or stay as long as they do.
        left_frac: what is left of the size of each, where `death` is None.
        is_whole: whether this is all that the remedy does to memory; else it also takes some, as
            what is computed again does, or frees more, and a replay without that proves nothing.
    """

    blocks: Int64Array
    death: Int64Array | None = None
    left_frac: float = 0.0
    is_whole: bool = True
