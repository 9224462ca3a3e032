"""Both ends of the peak of what a device's allocator held, over all that it depends on."""

from __future__ import annotations

from dataclasses import dataclass

from ullage.explain.completion import Completion, find_completion
from ullage.explain.tuning import Tuning, find_tuning
from ullage.trace.model import DeviceTotals, Record


@dataclass(frozen=True, slots=True)
class Reserved:
    """What the peak depends on: when asynchronous work ends, and whether kernels are timed."""

    completion: Completion
    tuning: Tuning

    @property
    def low_bytes(self) -> int:
        """The lower end."""
        return min(self.completion.low_bytes, self.tuning.low_bytes)

    @property
    def high_bytes(self) -> int:
        """The upper end, which the verdict uses."""
        return max(self.completion.high_bytes, self.tuning.high_bytes)


def find_reserved(record: Record, totals: DeviceTotals) -> Reserved:
    """Both ends of one device of a process."""
    return Reserved(find_completion(record, totals), find_tuning(record, totals))
