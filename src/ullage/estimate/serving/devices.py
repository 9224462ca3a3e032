"""The GPU that a server runs on: one that runs CUDA, or one that is listed for estimates alone.

as_device(find_entry("mi300x")).total_bytes
remarks_of(device)      # what is assumed of it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ullage.gpus.gpu import EstimateOnlyGpu, Gpu

__all__ = ["OtherGpu", "as_device", "remarks_of"]

_LIKE_AMPERE: Final = (8, 0)


@dataclass(frozen=True, slots=True)
class OtherGpu:
    """A GPU without CUDA, as far as a server's memory depends on it.

    Attributes:
        slug: in the catalogue.
        name: as its maker has it.
        total_bytes: memory that a process can have.
        context_low_bytes, context_bytes, context_high_bytes: what its driver holds: assumed.
        num_multiprocessors: compute units, or GPU cores.
        remarks: what is assumed of it, each a sentence.
        compute_capability: whose kernels it is counted with.
        nvlink_bytes_per_s: always None: what joins it to others is not NVLink.
    """

    slug: str
    name: str
    total_bytes: int
    context_low_bytes: int
    context_bytes: int
    context_high_bytes: int
    num_multiprocessors: int
    remarks: tuple[str, ...]
    compute_capability: tuple[int, int] = _LIKE_AMPERE
    nvlink_bytes_per_s: int | None = None


def as_device(entry: Gpu | EstimateOnlyGpu) -> Gpu | OtherGpu:
    """A row of the catalogue; of several sizes of memory the largest."""
    if isinstance(entry, Gpu):
        return entry
    return OtherGpu(
        entry.slug,
        entry.name,
        entry.total_bytes,
        *entry.context_bounds,
        num_multiprocessors=entry.num_cores or 1,
        remarks=entry.assumptions,
    )


def remarks_of(gpu: Gpu | OtherGpu | None) -> tuple[str, ...]:
    """What is assumed of a GPU; nothing of those that run CUDA."""
    return gpu.remarks if isinstance(gpu, OtherGpu) else ()
