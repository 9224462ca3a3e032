"""How much depends on when asynchronous work ends.

A block that another stream has used is reused only when that stream's work is done, and no program
says when that is. The phantom's is done as late as can be: when the host has waited for it. The
other end, all of it done at once, is measured by a replay (whatif/completion.py) where the run kept
a snapshot; where it kept none, no less can be reserved than was allocated.
"""

from __future__ import annotations

from dataclasses import dataclass

from ullage.trace.model import DeviceTotals, Record


@dataclass(frozen=True, slots=True)
class Completion:
    """Both ends of the peak of what a device's allocator held.

    Attributes:
        low_bytes, high_bytes: of it; equal where nothing depends on it.
        num_held: how many blocks were held back; None where it is not known.
        held_bytes: of them, at the peak; likewise.
    """

    low_bytes: int
    high_bytes: int
    num_held: int | None = 0
    held_bytes: int | None = 0


def find_completion(record: Record, totals: DeviceTotals) -> Completion:
    """Both ends of one device of a process."""
    late = totals.peak_reserved_bytes
    if not record.num_not_yet:
        return Completion(late, late)
    for candidate in record.at_once:
        if candidate.device != totals.index:
            continue
        other = candidate.reserved_bytes
        if other is None:
            other = totals.peak_allocated_bytes
        # Where free memory lies decides too, so that on a rare day less is held back and more held.
        return Completion(
            min(late, other), max(late, other), candidate.num_held, candidate.held_bytes
        )
    return Completion(min(late, totals.peak_allocated_bytes), late, None, None)
