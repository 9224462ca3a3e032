"""The basis of a log: what its player did not know, and took in its place.

    Assumption(AssumptionKind.WORKSPACE, "cuFFT work area", "", 3, 0, 4096, 8192).row()

Standard library alone: the recorder imports this in the user's interpreter.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Any

from ullage.ground.protocol.plain import As, Mark, figure


class AssumptionKind(enum.Enum):
    """The subject of an assumption, in the order in which answers list them."""

    SHAPE = "shape"
    ORDER = "order"  # in which requests that run at once take memory
    OWNERS = "owners"
    WORKSPACE = "workspace"
    PLAY = "play"  # what the eager player plays in place of a program
    REPLAY = "replay"  # what a replay with other settings comes to
    READ = "read"
    CALL = "call"
    WEIGHTS = "weights"
    OUTSIDE = "outside"
    """Memory that the driver or a library holds outside the allocator, at its highest."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """One thing that was assumed: where, how often, and how many bytes depend on it.

    Attributes:
        kind: what it is about.
        what: in words.
        where: in the user's code; empty where it has no such place.
        count: how often.
        low_bytes: the lower end of an assumed size; None where no size was assumed.
        likely_bytes: of an assumed size what was answered, of a value that was read its size.
        high_bytes: the upper end; None where no size was assumed.
    """

    kind: Annotated[AssumptionKind, Mark.UNWRITTEN]
    what: str
    where: str = ""
    count: int = 1
    low_bytes: int | None = None
    likely_bytes: Annotated[int, Mark.UNWRITTEN] = 0
    high_bytes: int | None = None

    @property
    def less_bytes(self) -> int:
        """By how much less it may be."""
        return 0 if self.low_bytes is None else self.likely_bytes - self.low_bytes

    @property
    def more_bytes(self) -> int:
        """By how much more it may be."""
        return 0 if self.high_bytes is None else self.high_bytes - self.likely_bytes

    @figure
    def size_bytes(self) -> Annotated[int, As("bytes")]:
        """The width of an interval, the size of a value that was read."""
        return self.likely_bytes if self.low_bytes is None else self.less_bytes + self.more_bytes

    @property
    def is_note(self) -> bool:
        """No byte depends on it: the answer stays exact."""
        # Values on the host alone: the sizes of what is built from them are what they are.
        return self.kind is AssumptionKind.WEIGHTS

    def row(self) -> list[Any]:
        """Its row of a record: the columns of ROWS["basis"]."""
        sizes = (self.low_bytes, self.likely_bytes, self.high_bytes)
        return [self.kind.value, self.what, self.where, self.count, *sizes]
