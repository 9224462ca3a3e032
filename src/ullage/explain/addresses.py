"""How much depends on the order in which the driver hands out addresses.

The allocator takes the lower of two free blocks of one size. The order is that of one system's
driver as far as it is known (docs/results/truth.md); a replay under the other's shows what can
depend on it (explain/whatif/variants.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from ullage.log.bounds import Otherwise
from ullage.log.model import DeviceTotals, Record


@dataclass(frozen=True, slots=True)
class AddressEnds:
    """Both ends of the peaks of what a device's allocator held and had given out, in bytes; equal
    where nothing depends on the order, or where the other one was not measured.
    """

    low_bytes: int
    high_bytes: int
    allocated_low_bytes: int
    allocated_high_bytes: int

    @property
    def width_bytes(self) -> int:
        """Their distance."""
        return self.high_bytes - self.low_bytes


def find_address_ends(record: Record, totals: DeviceTotals) -> AddressEnds:
    """Both ends of one device of a process."""
    other = record.otherwise_on(totals.index, Otherwise.ADDRESSES)
    own = (totals.peak_reserved_bytes, totals.peak_allocated_bytes)
    reserved, allocated = zip(own, *(() if other is None else other.peaks), strict=True)
    return AddressEnds(min(reserved), max(reserved), min(allocated), max(allocated))
