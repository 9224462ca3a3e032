"""The budget of a scenario: a limit in bytes, and the allowed difference from its lock.

Budget(max_used_bytes=22 * GIB)
Amount.parse("5%").of(80 * GIB)             # 4 GiB
allowed_growth(None, locked)                # the tolerance where none is given
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, NamedTuple, TypeAlias

from ullage.ground.config.tables import Size, parser
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import As, From
from ullage.ground.units import MIB, parse_bytes
from ullage.verbs.check.gate.lock import Peaks

_PERCENT = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*%")

# The phantom repeats itself to the byte, so a tolerance need not be wide: half of the smallest
# change that must not pass, which is 1 % or 32 MiB.
DEFAULT_SHARE = Fraction(1, 200)
DEFAULT_BYTES = 16 * MIB
# The allocator takes memory in segments of at least this size for requests between 1 and 10 MiB, so
# what it reserves moves by one where what it gives out moves by next to nothing.
# Source: kLargeBuffer in c10/core/AllocatorConfig.h.
SEGMENT_BYTES = 20 * MIB


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of bytes, or a share of a total."""

    size_bytes: int = 0
    share: Fraction = Fraction(0)

    @classmethod
    def parse(cls, text: str | int) -> Amount:
        """Reads "5%", "512MiB" or bytes.

        Raises:
            SpecError: it is neither.
        """
        match = _PERCENT.fullmatch(text.strip()) if isinstance(text, str) else None
        if match:
            return cls(share=Fraction(match["number"]) / 100)
        try:
            return cls(parse_bytes(text))
        except SpecError as error:
            raise SpecError(f"{error}; or a share, such as 5%") from None

    def of(self, whole_bytes: int) -> int:
        """The bytes, given the total."""
        return self.size_bytes + int(self.share * whole_bytes)


# A share of a peak, or bytes, as a file has them.
Tolerance: TypeAlias = Annotated[Amount, From(str | int), parser(Amount.parse)]


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a device; None: no limit.

    Attributes:
        max_allocated_bytes, max_reserved_bytes, max_used_bytes: the highest that each peak may be;
            used is the whole device, with the driver's context at its upper end.
        headroom: what must be left of the device, of its memory.
        growth_bytes: by how much more may be held after each step.
    """

    max_allocated_bytes: Annotated[Size | None, As("max_allocated")] = None
    max_reserved_bytes: Annotated[Size | None, As("max_reserved")] = None
    max_used_bytes: Annotated[Size | None, As("max_used")] = None
    headroom: Tolerance | None = None
    growth_bytes: Annotated[Size | None, As("growth_per_step")] = None


NO_BUDGET = Budget()


class Allowed(NamedTuple):
    """The allowed increase of each level over the lock."""

    allocated_bytes: int
    reserved_bytes: int
    used_bytes: int


def allowed_growth(tolerance: Amount | None, locked: Peaks) -> Allowed:
    """The allowed increase of the peaks over the locked ones.

    A tolerance that is given holds for each level. Else it is 0.5 % or 16 MiB, what is less; of
    what the allocator reserves, and so of the whole device, at least one segment of 20 MiB.
    """
    levels = (locked.allocated_bytes, locked.reserved_bytes, locked.used_bytes)
    if tolerance is not None:
        return Allowed(*(tolerance.of(level) for level in levels))
    allocated, reserved, used = (min(int(DEFAULT_SHARE * level), DEFAULT_BYTES) for level in levels)
    return Allowed(allocated, max(reserved, SEGMENT_BYTES), max(used, SEGMENT_BYTES))
