"""Both ends of the peak of what a device's allocator held, over all that it depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ullage.explain.addresses import AddressEnds, find_address_ends
from ullage.explain.completion import Completion, find_completion
from ullage.explain.tuning import Tuning, find_tuning
from ullage.explain.workspaces import Workspaces, find_workspaces
from ullage.ground.protocol.plain import As, Mark, figure
from ullage.log.model import DeviceTotals, Record


@dataclass(frozen=True, slots=True)
class Reserved:
    """The influences on the peak: when asynchronous work ends, whether kernels are timed, the order
    of addresses, and the workspaces of closed libraries. The first two were measured by replays of
    the same order and the same workspaces, so the spreads of the others add to theirs.
    """

    allocated_bytes: Annotated[int, Mark.NO_KEY]
    peak_bytes: Annotated[int, Mark.NO_KEY]
    completion: Annotated[Completion, Mark.FLAT]
    tuning: Annotated[Tuning, Mark.FLAT]
    addresses: Annotated[AddressEnds, Mark.NO_KEY]
    workspaces: Annotated[Workspaces, Mark.NO_KEY]

    @figure
    def low_bytes(self) -> Annotated[int, As("peak_reserved_low_bytes")]:
        """The lower end."""
        below = self.peak_bytes - self.addresses.low_bytes
        below += self.peak_bytes - self.workspaces.reserved_low_bytes
        return max(self.completion.low_bytes - self.tuning_less_bytes - below, 0)

    @figure
    def high_bytes(self) -> Annotated[int, As("peak_reserved_high_bytes")]:
        """The upper end."""
        return self.answered_bytes + self.workspaces.reserved_high_bytes - self.peak_bytes

    @property
    def answered_bytes(self) -> int:
        """The upper end with the workspaces that were answered, which the verdict uses."""
        above = self.addresses.high_bytes - self.peak_bytes
        return max(self.completion.high_bytes, self.tuning.high_bytes) + above

    @property
    def completion_less_bytes(self) -> int:
        """The bytes that are saved if asynchronous work is done at once."""
        return max(self.completion.high_bytes, self.tuning.high_bytes) - self.completion.low_bytes

    @property
    def tuning_less_bytes(self) -> int:
        """The further bytes that are saved if Inductor's cache spares it the timing of kernels."""
        return max(self.completion.low_bytes - self.tuning.low_bytes, 0)

    @figure
    def allocated_low_bytes(self) -> Annotated[int, As("peak_allocated_low_bytes")]:
        """The lower end of the peak of what was allocated."""
        at_once, warm = self.completion.allocated_low_bytes, self.tuning.allocated_low_bytes
        low = warm if at_once is None else min(at_once, warm)
        below = self.allocated_bytes - self.workspaces.allocated_low_bytes
        below += self.allocated_bytes - self.addresses.allocated_low_bytes
        return max(low - below, 0)

    @figure
    def allocated_high_bytes(self) -> Annotated[int, As("peak_allocated_high_bytes")]:
        """Its upper end: that of the run, but for workspaces and the order of addresses."""
        above = self.addresses.allocated_high_bytes - self.allocated_bytes
        return self.workspaces.allocated_high_bytes + above


def find_reserved(record: Record, totals: DeviceTotals) -> Reserved:
    """Both ends of one device of a process."""
    return Reserved(
        totals.peak_allocated_bytes,
        totals.peak_reserved_bytes,
        find_completion(record, totals),
        find_tuning(record, totals),
        find_address_ends(record, totals),
        find_workspaces(record, totals),
    )
