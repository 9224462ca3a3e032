"""The bytes that nvidia-smi shows of a device, line by line, down to what the program asked for.

What a line came to is None where the file does not tell: a snapshot of PyTorch's knows its own
allocator alone. On the phantom nobody else is on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ullage.explain.fragmentation import Fragmentation
from ullage.ground.protocol.plain import figure
from ullage.log.model import DeviceTotals


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """All bytes of a device at one moment. The first five add up to what is reserved; with context,
    libraries, other processes and what is free they are the whole device.

    Attributes:
        requested_bytes: of live tensors, as asked for.
        rounding_bytes: by how much their blocks are larger.
        cache_bytes: in segments without a live block: empty_cache() gives these back.
        hole_bytes: free in segments that live blocks keep.
        private_free_bytes: free in private pools, of use to nothing else.
        context_bytes: what the driver takes for this process.
        library_bytes: what libraries beside PyTorch's allocator take (NCCL, cuDNN, Triton).
        other_process_bytes: of other processes.
        free_bytes: what is left; negative where the device is too small.
        total_bytes: of the device.
    """

    requested_bytes: int
    rounding_bytes: int
    cache_bytes: int
    hole_bytes: int
    private_free_bytes: int
    context_bytes: int | None = None
    library_bytes: int | None = None
    other_process_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None

    @figure
    def reserved_bytes(self) -> int:
        """The bytes that PyTorch's allocator holds."""
        return (
            self.requested_bytes + self.rounding_bytes + self.cache_bytes
            + self.hole_bytes + self.private_free_bytes
        )  # fmt: skip

    @figure
    def process_bytes(self) -> int | None:
        """The bytes that nvidia-smi shows for the process."""
        if self.context_bytes is None or self.library_bytes is None:
            return None
        return self.reserved_bytes + self.context_bytes + self.library_bytes


def reconcile(lay: Fragmentation, totals: DeviceTotals | None) -> Reconciliation:
    """The lines of a device; `totals` where ullage recorded the run."""
    lines = Reconciliation(
        requested_bytes=lay.requested_bytes,
        rounding_bytes=lay.rounding_bytes,
        cache_bytes=lay.empty_bytes,
        hole_bytes=lay.hole_bytes,
        private_free_bytes=lay.private_free_bytes,
    )
    if totals is None or not totals.total_bytes:
        return lines
    beside = totals.context_bytes + totals.non_torch_bytes
    return replace(
        lines,
        context_bytes=totals.context_bytes,
        library_bytes=totals.non_torch_bytes,
        other_process_bytes=0,
        free_bytes=totals.total_bytes - lay.reserved_bytes - beside,
        total_bytes=totals.total_bytes,
    )
