"""The use of a device's memory at one moment: the peak of allocated bytes, or when it ran out.

The peak of *reserved* bytes is another moment: a small segment that is reserved late, in the
optimizer's step or in a validation, raises it while almost nothing is allocated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from ullage.explain.owners.modules import ModuleShare
from ullage.protocol.plain import As, Mark
from ullage.trace.model import Category


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owners of a device's allocated bytes at a position; they sum to `allocated_bytes`.

    Whole blocks are counted, so rounding belongs to the owner of the block. Bytes that are missing
    from the log, because it was capped, are UNATTRIBUTED.
    """

    position: int
    allocated_bytes: Annotated[int, Mark.NO_KEY]
    by_category: Annotated[Mapping[Category, int], As("owners")]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The bytes of a device at one moment: owners + cache + context + non-torch + others
    + free == total.

    Attributes:
        owners: the owners of the allocated bytes.
        cache_bytes: the bytes reserved by the allocator and not allocated.
        context_bytes: the driver's context: its upper bound, or its size when memory ran out.
        non_torch_bytes: the bytes that libraries allocate outside the allocator.
        others_bytes: the bytes of the run's other processes, as in `DeviceTotals`.
        total_bytes: the memory of the device.
        free_bytes: the remaining bytes; negative where the device is too small.
        modules: the allocated bytes by module.
    """

    owners: Annotated[Ownership, Mark.FLAT]
    cache_bytes: int
    context_bytes: int
    non_torch_bytes: int
    others_bytes: Annotated[int, As("other_processes_bytes")]
    total_bytes: int
    free_bytes: int
    modules: tuple[ModuleShare, ...]


def balance(
    owners: Ownership,
    modules: tuple[ModuleShare, ...],
    *,
    reserved_bytes: int,
    context_bytes: int,
    non_torch_bytes: int,
    others_bytes: int,
    total_bytes: int,
) -> Ledger:
    """Returns the ledger of a device on which the allocator reserved `reserved_bytes`."""
    return Ledger(
        owners=owners,
        modules=modules,
        cache_bytes=reserved_bytes - owners.allocated_bytes,
        context_bytes=context_bytes,
        non_torch_bytes=non_torch_bytes,
        others_bytes=others_bytes,
        total_bytes=total_bytes,
        free_bytes=total_bytes - reserved_bytes - context_bytes - non_torch_bytes - others_bytes,
    )
