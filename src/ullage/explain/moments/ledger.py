"""Where a device's memory was at one moment: when the most of it was allocated, or when it ran out.

The highest *reserved* is another moment: a small segment that comes late, in the optimizer's step
or in a validation, raises it while next to nothing is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass

from ullage.explain.moments.peak import Ownership


@dataclass(frozen=True, slots=True)
class Ledger:
    """All bytes of a device at one moment: owners + cache + context + non-torch + free == total.

    Attributes:
        owners: who owned the allocated bytes.
        cache_bytes: reserved by the allocator and not allocated.
        context_bytes: the driver's context: upper end, or where memory ran out what it took there.
        non_torch_bytes: held by libraries beside the allocator.
        total_bytes: of the device.
        free_bytes: what was left; negative where the device is too small for it.
    """

    owners: Ownership
    cache_bytes: int
    context_bytes: int
    non_torch_bytes: int
    total_bytes: int
    free_bytes: int


def balance(
    owners: Ownership,
    *,
    reserved_bytes: int,
    context_bytes: int,
    non_torch_bytes: int,
    total_bytes: int,
) -> Ledger:
    """The ledger of a device of which the allocator held `reserved_bytes`."""
    return Ledger(
        owners=owners,
        cache_bytes=reserved_bytes - owners.allocated_bytes,
        context_bytes=context_bytes,
        non_torch_bytes=non_torch_bytes,
        total_bytes=total_bytes,
        free_bytes=total_bytes - reserved_bytes - context_bytes - non_torch_bytes,
    )
